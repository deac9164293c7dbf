"""How long a sequence a model takes, and how many tokens that leaves after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def max_context(model: Any) -> int | None:
    """The longest sequence that a model takes; None where it takes any length."""
    if not all(mixer.traits.any_length for mixer in model.mixers):
        return model.ctx.tokens.max_len
    return int(model.ctx.tokens.max_len * model.position.length_scale) if model.position.bounded else None


def max_length(model: Any) -> int:
    """The longest sequence that is written up to an end token: `max_context`, or the data's longest if unbounded."""
    limit = max_context(model)
    return int(model.ctx.tokens.max_len) if limit is None else limit


def tokens_left(model: Any, prompt: Sequence[int], max_tokens: int, end: int | None) -> int:
    """How many tokens may follow a prompt.

    The last of them, or the end token, is never read, and so may lie one beyond the maximum length.
    """
    return max_tokens if end is None else max(0, min(max_tokens, max_length(model) - len(prompt) + 1))
