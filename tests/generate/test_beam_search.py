"""Beam search against looking at every row, against greedy writing, and several prompts at once."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from blockyard.contracts import Inputs
from blockyard.errors import UserError
from blockyard.generate.beam_search import _Search, beam_search_batch
from blockyard.generate.stats import Stats
from tests.components.model.tiny_models import blocks_with_cross, tiny_encoder_decoder
from tests.generate.decoding import MAX_TOKENS, beam, greedy
from tests.support.helpers import LENGTH, choices, has, tiny, token_ids, traits


def best_of_all(model: nn.Module, prompt: list[int], length: int, end: int | None, alpha: float, **more: Any) -> Any:
    """The best row by looking at every one: (score, symbols)."""
    totals_of_all = []
    for size in range(length + 1):
        open_sequences: list[tuple[list[int], list[int]]] = []
        for row in itertools.product(range(11), repeat=size):
            closed = [*row, end] if size < length else list(row)
            if end not in row and not (size < length and end is None):
                open_sequences.append((closed, list(row)))
        if open_sequences:
            sequences = torch.tensor([[*prompt, *closed] for closed, _ in open_sequences])
            logs = torch.log_softmax(model(Inputs(sequences, **more)), -1)[:, len(prompt) - 1 : -1]
            totals = logs.gather(2, sequences[:, len(prompt) :, None]).sum((1, 2)).tolist()
            totals_of_all += [
                (t / len(closed) ** alpha, row) for t, (closed, row) in zip(totals, open_sequences, strict=True)
            ]
    return max(totals_of_all)


@torch.no_grad()
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(("end", "alpha"), [(None, 1.0), (4, 0.0), (4, 1.0), (4, 2.0)])
def test_a_beam_as_wide_as_all_rows_finds_the_best(end: int | None, alpha: float, cache: bool) -> None:
    """From several prompts at once, each its own."""
    model = tiny(causal=True, position="rope")
    for parameter in model.parameters():
        parameter.mul_(0.6)
    prompts = [[1, 2], [5, 3, 1], [7]] if cache else [[1, 2]]
    settings = {"width": 121, "max_tokens": 3, "cache": cache, "length_penalty": alpha, "end": end}
    sequences, stats = beam(model, prompts, **settings)
    assert sequences == [best_of_all(model, prompt, 3, end, alpha)[1] for prompt in prompts]
    assert stats.tokens == sum(map(len, sequences))
    assert sequences == [beam(model, [prompt], **settings)[0][0] for prompt in prompts]


@pytest.mark.parametrize("planted", [False, True])
def test_unlikely_ends_do_not_end_a_confident_search(planted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is among the best candidates at every step, far below the right token; planted: it counts too."""
    if planted:
        monkeypatch.setattr(_Search, "_leads", lambda *_: False)
    right, end = [1, 2, 3, 2, 1], 0
    search = _Search([], width=3, budget=8, length_penalty=1.0, end=end)
    for token_id in [*right, end]:
        log_probs = torch.tensor([0.02, 0.005, 0.005, 0.005, 0.005])
        log_probs[token_id] = 0.96
        if not search.live:
            break
        search.extend(log_probs.log().expand(len(search.live), -1))
    assert search.best is not None
    assert (search.best[1] == right) == (not planted)


@torch.no_grad()
@pytest.mark.parametrize("position", ["learned", "rope"])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 3.0])
def test_a_beam_of_one_is_greedy(position: str, alpha: float) -> None:
    """Row by row and step by step, whatever the length counts, with rows that end and rows that are cut."""
    model, prompts = tiny(causal=True, position=position), [[1, 2], [4], [3, 3]]
    sequences = greedy(model, prompts, cache=True, max_tokens=MAX_TOKENS)[0]
    ends = [None, *sorted({symbol for row in sequences for symbol in row[:LENGTH]})]
    assert len(ends) > 2
    for end in ends:
        plain, stats = greedy(model, prompts, cache=True, max_tokens=MAX_TOKENS, end=end)
        settings = {"width": 1, "max_tokens": MAX_TOKENS, "end": end, "length_penalty": alpha}
        result, counted = beam(model, prompts, **settings)
        assert result == plain
        facts = ("tokens", "steps", "cuts", "unfinished")
        assert [getattr(counted, name) for name in facts] == [getattr(stats, name) for name in facts]
        assert beam(model, prompts, cache=False, **settings)[0] == plain


@torch.no_grad()
def test_rows_that_are_cut_are_cut_alike() -> None:
    model = tiny(causal=True, position="learned")
    result, stats = beam(model, [[1, 2]], width=3, max_tokens=MAX_TOKENS)
    assert stats.cuts
    assert result == beam(model, [[1, 2]], width=3, max_tokens=MAX_TOKENS, cache=False)[0]


def keeping() -> list[str]:
    """Mixers whose past is kept: keys and values, a state, or inputs."""
    return [name for name in choices("token_mixer") if traits(name).causal and has(name, "init_cache")]


@torch.no_grad()
@pytest.mark.parametrize("mixer", keeping())
@pytest.mark.sampled(2)
def test_beams_reorder_every_cache(mixer: str) -> None:
    """Of prompts of different lengths, which read on while others search, and end at different times."""
    model, prompts = tiny(causal=True, token_mixer=mixer), [[1, 2], [4], [3, 5, 6]]
    settings = {"width": 3, "max_tokens": LENGTH - 3, "end": 7}
    together = beam(model, prompts, **settings)[0]
    assert together == beam(model, prompts, cache=False, **settings)[0]
    assert together == [beam(model, [prompt], **settings)[0][0] for prompt in prompts]


@torch.no_grad()
@pytest.mark.parametrize(
    "block",
    [pytest.param(b, marks=[pytest.mark.full] * (b not in ("pre_norm", "post_norm"))) for b in blocks_with_cross()],
)
def test_beams_from_sources(block: str) -> None:
    """Each hypothesis looks at the source of its own prompt, however many others there are."""
    model = tiny_encoder_decoder(block=block, position="rope")
    source, lengths = token_ids(3, 7, 5), torch.tensor([7, 3, 5])
    alone = [model.encode(source[row : row + 1, : lengths[row]]) for row in range(3)]
    # In the second case one prompt's rows end when those of the others double: as many rows, of other sources.
    for prompts, width, tokens in (([[1], [1, 2, 3], [1]], 3, 4), ([[1], [1, 2], [1, 3]], 2, 2)):
        for end in (None, *range(11)):
            settings = {"width": width, "max_tokens": tokens, "end": end}
            single = [
                beam(model, [prompt], memory=one, **settings)[0][0] for prompt, one in zip(prompts, alone, strict=True)
            ]
            for cache in (True, False):
                memory = model.encode(source, lengths)
                assert beam(model, prompts, memory=memory, cache=cache, **settings)[0] == single
    best = best_of_all(model, [1], 2, 7, 1.0, memory=alone[0])[1]
    assert beam(model, [[1]], memory=alone[0], width=11, max_tokens=2, end=7)[0] == [best]


def test_scores_that_are_no_numbers_are_said() -> None:
    model = tiny(causal=True)
    with torch.no_grad():
        model.head.proj.weight.mul_(math.nan)
    with pytest.raises(UserError, match="scores are NaN"):
        list(beam_search_batch(model, [[1]], width=2, max_tokens=2, cache=True, stats=Stats()))
