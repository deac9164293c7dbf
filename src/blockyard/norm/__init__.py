"""Normalisations: one mechanism per file."""
