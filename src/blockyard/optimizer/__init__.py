"""Which parameters are updated how. One file each."""
