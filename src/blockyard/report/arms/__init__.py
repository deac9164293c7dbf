"""The parts of a comparison: rows, curves, warnings, and the answer in words."""
