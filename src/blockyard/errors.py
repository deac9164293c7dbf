"""Errors that are for the user: one clear message, exit code 2, no traceback."""

from __future__ import annotations


class UserError(ValueError):
    """Something the user gave cannot work; the message says what, which value, and what would."""
