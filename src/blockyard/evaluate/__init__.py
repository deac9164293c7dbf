"""A trained run evaluated again: on one split, at longer sequences, its forecasts and predictions."""
