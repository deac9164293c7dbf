"""Tuning and hyperparameter search: the same budget for every arm, chosen on validation."""
