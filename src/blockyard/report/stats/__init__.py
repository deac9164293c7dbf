"""Statistics of a comparison: intervals, paired differences, power, verdicts, effects, expectations."""
