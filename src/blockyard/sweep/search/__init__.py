"""Hyperparameter searches: the same budget for every arm, chosen on validation."""
