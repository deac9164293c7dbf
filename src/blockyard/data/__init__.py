"""Data sets, one per file."""
