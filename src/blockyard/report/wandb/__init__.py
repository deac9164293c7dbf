"""A comparison mirrored at Weights & Biases."""
