"""A trained run evaluated again: on one split, at longer sequences, and its decoding speed."""
