"""Channel mixers: one mechanism per file."""
