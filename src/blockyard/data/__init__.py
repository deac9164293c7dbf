"""Data sets: what is trained on. One file each."""
