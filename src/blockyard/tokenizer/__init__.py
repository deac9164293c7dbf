"""How raw items become tokens. One file each."""
