"""How blocks are stacked. One file each."""
