"""Holds a component to what it declares: the checks of the project's own tests, for components of anybody's."""

from __future__ import annotations

from blockyard.verify.run import small_model, verify

__all__ = ["small_model", "verify"]
