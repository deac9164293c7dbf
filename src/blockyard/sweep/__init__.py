"""Ablations as objects: a question in a file, its frozen plan, the cells that are missing, their execution."""
