"""What a trained decoder costs to write with: one row, token after token, from its cache."""

from __future__ import annotations

import statistics

import torch
from torch import nn

from blockyard.decoding import Stats, decode
from blockyard.engine.randomness import undisturbed
from blockyard.model._transformer import Transformer

_TOKENS = 64
_TIMES = 3


def decoding(model: nn.Module) -> dict[str, float | None]:
    """Tokens per second of greedy decoding from one symbol, and bytes of cache per token, by their names.

    The rate is the median of three rows of at most 64 tokens. None for both where the model does not decode
    from a cache: an encoder, a mixer without one, a model that is not blockyard's.
    """
    rows = _rows(model) if isinstance(model, Transformer) and _has_cache(model) else []
    return {
        "decode_tokens_per_second": statistics.median(row.tokens_per_second for row in rows) if rows else None,
        "cache_bytes_per_token": rows[0].cache_bytes_per_token if rows else None,
    }


def _has_cache(model: Transformer) -> bool:
    if not model.ctx.causal or model.ctx.tokens.vocabulary is None or model.ctx.tokens.max_len < 2:
        return False
    if not all(mixer.traits.any_length for mixer in model.mixers):
        return False
    try:
        model.init_cache(1)
    except ValueError:  # how a mixer says that it has none
        return False
    return True


def _rows(model: Transformer) -> list[Stats]:
    tokens = min(_TOKENS, model.ctx.tokens.max_len - 1)
    training = model.training
    try:
        with undisturbed(), torch.inference_mode():
            model.eval()
            return [_row(model, tokens) for _ in range(_TIMES + 1)][1:]  # the first warms up
    finally:
        model.train(training)


def _row(model: Transformer, tokens: int) -> Stats:
    stats = Stats()
    # Not the chooser of `generate`, which refuses scores that are no numbers: here they are only timed.
    for _ in decode(model, [0], lambda scores: int(scores.argmax()), max_tokens=tokens, cache=True, stats=stats):
        pass
    return stats
