"""Token mixers: one mechanism per file."""
