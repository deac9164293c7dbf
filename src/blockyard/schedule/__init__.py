"""Factors on the learning rate over training. One file each."""
