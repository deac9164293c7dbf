"""Kernels that mixers share; the only package that handles masks and fast paths."""
