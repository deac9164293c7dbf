"""The cost of decoding: one sequence, token by token, from the cache."""

from __future__ import annotations

import statistics
from typing import TypeGuard

import torch
from torch import nn

from blockyard.contracts import Context, EncodesSource, Model
from blockyard.generate.decode import decode_batch
from blockyard.generate.stats import Stats
from blockyard.model._cache import HasCache
from blockyard.model._example_batch import example, full
from blockyard.ops.rng import undisturbed

_TOKENS = 64
_TIMES = 3


def decoding(model: nn.Module) -> dict[str, float | None]:
    """Tokens per second of greedy decoding from one token, and the size of the cache.

    The rate is the median over three sequences of at most 64 tokens. `cache_bytes_per_token` is what each token adds,
    0 for a state of constant size; `cache_bytes` is the cache of a whole sequence. All are None where the model does
    not decode from a cache: an encoder, a mixer without one, a head for sequences of one length, a model that is not
    blockyard's.
    """
    runs = _measure(model) if _has_cache(model) else []
    return {
        "decode_tokens_per_second": statistics.median(run.tokens_per_second for run in runs) if runs else None,
        "cache_bytes_per_token": runs[0].cache_bytes_per_token if runs else None,
        "cache_bytes": runs[0].cache_bytes if runs else None,
    }


def _has_cache(model: nn.Module) -> TypeGuard[Model]:
    ctx = getattr(model, "ctx", None)
    if not isinstance(model, HasCache) or not isinstance(ctx, Context):
        return False
    if not ctx.causal or ctx.tokens.vocabulary is None or ctx.tokens.max_len < 2:
        return False
    if getattr(getattr(model, "head", None), "fixed_length", False):  # it reads whole sequences only
        return False
    try:
        model.init_cache(1)
    except ValueError:  # a mixer without a cache
        return False
    return True


def _measure(model: Model) -> list[Stats]:
    tokens = min(_TOKENS, model.ctx.tokens.max_len - 1)
    training = model.training
    try:
        with undisturbed(), torch.inference_mode():
            model.eval()
            return [_decode(model, tokens) for _ in range(_TIMES + 1)][1:]  # the first warms up
    finally:
        model.train(training)


def _decode(model: Model, tokens: int) -> Stats:
    stats, memory = Stats(), None
    if model.ctx.data.source is not None:
        assert isinstance(model, EncodesSource)
        source = example(full(model.ctx), next(model.parameters()).device).source
        assert source is not None
        memory = model.encode(source)
    # `generate` refuses scores that are not finite; here only the time counts.
    choose = [lambda scores: int(scores.argmax())]
    for _ in decode_batch(model, [[0]], choose, max_tokens=tokens, cache=True, stats=stats, memory=memory):
        pass
    return stats
