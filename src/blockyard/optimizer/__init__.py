"""Optimizers: one mechanism per file."""
