"""How fast a trained decoder writes: one row, token after token, from its cache."""

from __future__ import annotations

import statistics

import torch
from torch import nn

from blockyard.contracts import Objective
from blockyard.decoding import Chooser, Stats, decode
from blockyard.engine.randomness import undisturbed

_TOKENS = 64
_TIMES = 3


def decode_tokens_per_second(model: nn.Module, objective: Objective) -> float | None:
    """Tokens per second of greedy decoding from one symbol: the median of three rows of at most 64 tokens.

    None where the model does not decode from a cache: an encoder, a mixer without one.
    """
    ctx = getattr(model, "ctx", None)
    if ctx is None or not ctx.causal or ctx.tokens.vocabulary is None or not objective.needs_causal:
        return None
    tokens = min(_TOKENS, ctx.tokens.max_len - 1)
    training = model.training
    try:
        with undisturbed(), torch.inference_mode():
            model.eval().init_cache(1)
            rates = [_rate(model, tokens) for _ in range(_TIMES + 1)][1:]  # the first warms up
    except (ValueError, AttributeError):
        return None
    finally:
        model.train(training)
    return statistics.median(rates)


def _rate(model: nn.Module, tokens: int) -> float:
    stats = Stats()
    for _ in decode(model, [0], Chooser(0.0, None, 0), max_tokens=tokens, cache=True, stats=stats):
        pass
    return stats.tokens_per_second
