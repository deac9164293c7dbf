"""Predictions of runs for single samples of the test split, as the page of a comparison shows them."""
