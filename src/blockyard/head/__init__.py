"""Heads, from token vectors to predictions: one mechanism per file."""
