"""Callbacks of a run, one file each, and the hooks that Lightning's own callbacks expect (`lightning_hooks`)."""
