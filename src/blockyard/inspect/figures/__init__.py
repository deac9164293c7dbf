"""The figures of `blockyard inspect`. The modules next to this folder compute the numbers."""
