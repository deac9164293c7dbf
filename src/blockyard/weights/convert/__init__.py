"""Converters between presets and models of libraries, one file a preset in `preset/`.

A converter reads a library's config as overrides of its preset and has rules between the weights, once for both
directions. `importing` writes a folder that a run can start from, `exporting` one that the library reads.
"""
