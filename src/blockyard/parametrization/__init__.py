"""Parametrizations, how a model depends on its size: one mechanism per file."""
