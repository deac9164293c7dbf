"""Run folders: identity, provenance, checkpoints, status."""
