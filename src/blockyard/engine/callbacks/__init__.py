"""Callbacks of a run, one file each; Lightning's own work beside them (`lightning.py`)."""
