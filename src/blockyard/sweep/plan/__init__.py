"""The frozen plan of a sweep: every cell is composed and checked before the first one starts."""
