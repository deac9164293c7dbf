"""Sweeps that stop when their question is decided: evidence after every seed, decisions, the cells that are due."""
