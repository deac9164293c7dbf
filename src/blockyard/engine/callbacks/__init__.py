"""Callbacks of a run, one file each, and what Lightning's own callbacks need of it (`lightning_hooks`)."""
