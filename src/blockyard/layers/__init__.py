"""Layers of a model that differ from the others, and their parts. One file each."""
