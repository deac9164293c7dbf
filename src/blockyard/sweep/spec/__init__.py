"""A question file as a validated object."""
