"""Which layers of a model differ, and in what. One file each."""
