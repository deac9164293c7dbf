"""The cost of sequences that are decoded one after the other is the sum of what each costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from torch import nn

from blockyard.generate.decode import decode_batch
from blockyard.generate.draft import NgramDraft
from blockyard.generate.sampling import Sampler
from blockyard.generate.speculative import SpeculativeStats, speculate
from blockyard.generate.stats import Stats
from tests.generate.decoding import PROMPT
from tests.support.helpers import tiny

SETTINGS = {"max_tokens": 6, "cache": True}


def decodes(model: nn.Module, stats: Stats) -> Iterator[object]:
    return decode_batch(model, [PROMPT], [Sampler(0, None, 0)], stats=stats, **SETTINGS)


def drafts(model: nn.Module, stats: SpeculativeStats) -> Iterator[object]:
    return speculate(model, PROMPT, NgramDraft(PROMPT), Sampler(0, None, 0), draft_tokens=2, stats=stats, **SETTINGS)


@pytest.mark.parametrize("decode", [decodes, drafts])
def test_two_prompts_cost_twice_what_one_costs(
    decode: Callable[[nn.Module, SpeculativeStats], Iterator[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ticks = tiny(causal=True, position="rope"), count(1)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))
    one, two = SpeculativeStats(), SpeculativeStats()
    list(decode(model, one))
    list(decode(model, two))
    for _ in range(1000):
        time.perf_counter()  # what happens between two prompts costs nothing
    list(decode(model, two))
    assert one.seconds > 0
    for name in ("tokens", "steps", "seconds", "draft_seconds", "cache_bytes"):
        assert getattr(two, name) == 2 * getattr(one, name), name
    assert (two.first_seconds, two.cache_bytes_per_token) == (one.first_seconds, one.cache_bytes_per_token)
    assert two.tokens_per_second == one.tokens_per_second
    assert two.draft_seconds < two.seconds
