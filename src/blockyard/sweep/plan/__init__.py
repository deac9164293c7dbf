"""The frozen plan of a sweep: every cell composed and checked before the first one starts."""
