"""Runs the cells of a plan that are missing."""
