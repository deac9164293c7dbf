"""Reads a sweep file into a validated question."""
