"""Objectives: targets, loss and metrics. One mechanism per file."""
