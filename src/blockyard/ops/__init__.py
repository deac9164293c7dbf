"""Kernels that mixers share; the only place that knows masks and fast paths."""
