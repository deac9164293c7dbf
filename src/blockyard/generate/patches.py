"""Tokens of images that are real values, written one after another."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import DrawsValues, Model
from blockyard.errors import UserError
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import NO_CACHE, describe_cache
from blockyard.model._cache import Cache, HasCache

log = logging.getLogger("blockyard")


@torch.inference_mode()
def write_patches(
    model: Model,
    objective: DrawsValues,
    prompts: Tensor,
    missing: int,
    temperature: float,
    seeds: Sequence[int],
    *,
    cache: bool,
    stats: Stats,
) -> Tensor:
    """Returns the tokens (n, N, V) of images that begin with prompts (n, 1 + given tokens, V), on the CPU.

    missing: tokens to write; seeds: of each image, so that it is what it would be alone

    Raises UserError where a prediction is not finite.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    device = next(model.parameters()).device
    kept = _cache(model, len(prompts), stats) if cache else None
    if not cache:
        stats.method = f"{NO_CACHE} (cache=false)"
    tokens, started = prompts, time.perf_counter()
    for _ in range(missing):
        new = tokens if kept is None else tokens[:, kept.length :]
        prediction = _last(model, new.to(device), kept)  # (n, V')
        if not bool(prediction.isfinite().all()):
            raise UserError("the model's predictions are not finite: its weights are broken; try which=previous")
        drawn = [objective.draw(each, temperature, own) for each, own in zip(prediction, generators, strict=True)]
        tokens = torch.cat([tokens, torch.stack(drawn)[:, None]], 1)
        stats.steps, stats.tokens = stats.steps + 1, stats.tokens + len(drawn)
        stats.seconds = time.perf_counter() - started
        stats.first_seconds = stats.first_seconds or stats.seconds
    if kept is not None and stats.steps:
        stats.cache_bytes = kept.bytes
        stats.cache_bytes_per_token = kept.bytes / kept.length / len(prompts)
    return tokens[:, 1:]


def _cache(model: Model, count: int, stats: Stats) -> Cache | None:
    """An empty cache; None, with a warning, for a model that has none."""
    assert isinstance(model, HasCache)
    try:
        cache = model.init_cache(count)
    except ValueError as error:
        log.warning("no cache, each token runs the whole sequence again: %s", error)
        stats.method = f"{NO_CACHE} (the model has no cache)"
        return None
    stats.method = describe_cache(cache)
    return cache


def _last(model: Model, tokens: Tensor, cache: Cache | None) -> Tensor:
    """The prediction (n, V') for what follows the last token, on the CPU."""
    if cache is not None:
        return model(tokens, cache=cache)[:, -1].float().cpu()
    length = tokens.shape[1]
    if not all(mixer.traits.any_length for mixer in model.mixers):
        # A causal model's predictions do not depend on what follows, so padding behind is harmless.
        tokens = torch.nn.functional.pad(tokens, (0, 0, 0, model.ctx.tokens.max_len - length))
    return model(tokens)[:, length - 1].float().cpu()
