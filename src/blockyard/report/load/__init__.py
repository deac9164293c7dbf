"""From run folders to the records that a comparison is computed from."""
