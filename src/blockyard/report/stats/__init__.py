"""Statistics of a comparison: intervals, paired differences, effects, corrected verdicts."""
