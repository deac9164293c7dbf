"""Greedy decoding and beam search to the end, with their statistics."""

from __future__ import annotations

from typing import Any

from torch import nn

from blockyard.generate.beam_search import beam_search_batch
from blockyard.generate.decode import decode_batch
from blockyard.generate.sampling import Sampler
from blockyard.generate.stats import Stats
from tests.support.helpers import LENGTH

MAX_TOKENS = 2 * LENGTH + 2  # so many that sequences of a bounded length are cut, twice


def greedy(model: nn.Module, prompts: list[list[int]], *, cache: bool, **more: Any) -> tuple[list[list[int]], Stats]:
    """The likeliest token ids after each prompt."""
    stats, sequences = Stats(), [[] for _ in prompts]
    choose = [Sampler(0, None, 0) for _ in prompts]
    settings = {"max_tokens": MAX_TOKENS, **more}
    for step in decode_batch(model, prompts, choose, cache=cache, stats=stats, **settings):
        for row, token_id in step:
            sequences[row].append(token_id)
    return sequences, stats


def beam(model: nn.Module, prompts: list[list[int]], **more: Any) -> tuple[list[list[int]], Stats]:
    """The best sequence that a beam finds for each prompt."""
    stats, sequences = Stats(), [[] for _ in prompts]
    for step in beam_search_batch(model, prompts, **{"cache": True, "max_tokens": LENGTH, "stats": stats, **more}):
        for row, token_id in step:
            sequences[row].append(token_id)
    return sequences, stats
