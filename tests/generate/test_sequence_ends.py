"""Where a row ends: what is no text is never written, rows with an end symbol end at the model's last place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blockyard.generate.decode import decode_batch
from blockyard.generate.sampling import Sampler
from blockyard.generate.stats import Stats
from tests.generate.decoding import beam
from tests.support.every import every
from tests.support.helpers import LENGTH, tiny

START, END, MASK = 8, 9, 10
WAYS = ["greedy", "sampling", "beam", "beam of one"]


def framed(position: str = "rope", liked: tuple[int, ...] = (), end: int | None = END) -> nn.Module:
    """A decoder whose rows have a start and an end; the symbols `liked` are by far the likeliest everywhere."""
    model = tiny(causal=True, position=position)
    model.ctx = replace(model.ctx, tokens=replace(model.ctx.tokens, start=START, end=end, mask=MASK))

    def push(_: nn.Module, __: Any, scores: Tensor) -> Tensor:
        return scores.index_add(-1, torch.tensor(liked), torch.full((*scores.shape[:-1], len(liked)), 50.0).double())

    if liked:
        model.register_forward_hook(push)
    return model


def written(model: nn.Module, method: str, prompts: list[list[int]], **settings: Any) -> tuple[list[list[int]], Stats]:
    """What follows the prompts, by one way of choosing."""
    settings = {"max_tokens": 4, "cache": True, "end": model.ctx.tokens.end, **settings}
    if method.startswith("beam"):
        return beam(model, prompts, width=1 if method == "beam of one" else 3, **settings)
    choose = [Sampler(0 if method == "greedy" else 4.0, 0, seed) for seed in range(len(prompts))]
    stats, sequences = Stats(), [[] for _ in prompts]
    for step in decode_batch(model, prompts, choose, stats=stats, **settings):
        for row, symbol in step:
            sequences[row].append(symbol)
    return sequences, stats


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("method", WAYS)
def test_special_tokens_are_never_generated(method: str, cache: bool) -> None:
    """Although start and mask are by far the likeliest; where rows have no end, neither is its symbol."""
    for liked in ((START,), (MASK,), (START, MASK)):
        sequences, _ = written(framed(liked=liked), method, [[START], [START, 1]], cache=cache)
        assert every(0 <= symbol < START for row in sequences for symbol in row)
        assert any(sequences)
    sequences, stats = written(framed(liked=(END,)), method, [[START], [START, 1]], cache=cache)
    assert (sequences, stats.tokens, stats.steps, stats.unfinished) == ([[], []], 0, 2, 0)
    assert str(stats).startswith("0 tokens in 2 steps, ")
    sequences, _ = written(framed(liked=(END,)), method, [[START], [1]], cache=cache, end=None)  # nobody ends at it
    assert every(len(row) == 4 and max(row) < START for row in sequences)
    sequences, _ = written(
        framed(liked=(END,), end=None), method, [[START]], cache=cache
    )  # data without an end: a symbol as any
    assert sequences == [[END] * 4]


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("position", ["learned", "rope"])
@pytest.mark.parametrize("method", WAYS)
def test_a_sequence_with_an_end_is_never_cut(method: str, position: str, cache: bool) -> None:
    """It ends when the model has no further place, whether its positions know a last one or not, and that is said."""
    model, prompts = framed(position, liked=(1, 2, 3, 4)), [[START], [START, 1, 2], [START, *[1] * (LENGTH - 1)]]
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(args[0].inputs))
    sequences, stats = written(model, method, prompts, max_tokens=200, cache=cache)
    assert [len(row) for row in sequences] == [LENGTH, LENGTH - 2, 1]
    assert (stats.tokens, stats.steps, stats.cuts, stats.unfinished) == (2 * LENGTH - 1, LENGTH, 0, 3)
    assert f", 3 sequences reached the maximum length of {LENGTH} without an end token" in str(stats)
    if not cache:
        assert every(bool((batch[:, 0] == START).all()) for batch in seen)
    for prompt, row in zip(prompts, sequences, strict=True):
        if method != "sampling":
            assert written(model, method, [prompt], max_tokens=200, cache=cache)[0] == [row]
    shorter, stats = written(model, method, prompts, max_tokens=2, cache=cache)
    assert [len(row) for row in shorter] == [2, 2, 1]
    assert ", 1 sequence reached the maximum length" in str(stats)
    shorter, stats = written(model, method, prompts[:1], max_tokens=LENGTH, cache=cache)
    assert "maximum length" not in str(stats)  # as many as asked for


def test_a_beam_stops_where_rows_do() -> None:
    """Where an end is likely a beam of one stops at it, and a wide one long before the tokens allowed."""
    model = framed()
    for method in ("beam of one", "beam"):
        sequences, stats = written(model, method, [[START]], max_tokens=200)
        assert stats.steps <= LENGTH
        assert stats.tokens == len(sequences[0])
        assert stats.tokens_per_second == pytest.approx(len(sequences[0]) / stats.seconds)
