"""Normalisations. One file each."""
