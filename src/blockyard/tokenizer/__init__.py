"""Tokenizers: how raw inputs become tokens. One per file."""
