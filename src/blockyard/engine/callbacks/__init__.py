"""Callbacks of a run, one file each. Lightning's own callbacks can be added (`lightning.py`)."""
