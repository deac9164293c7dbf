"""Ablations from a question file: its frozen plan, running the missing cells, searching settings."""
