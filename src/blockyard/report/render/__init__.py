"""One comparison, several ways to read it. One file each."""
