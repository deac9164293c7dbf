"""Rows written from scores: the same from a cache and without for every decoder, in batches as alone, and as beams."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from blockyard.beam import beam_search
from blockyard.choosing import Chooser, probabilities
from blockyard.decoding import decode_rows
from blockyard.errors import UserError
from blockyard.model._prefix import Prefix
from blockyard.ops.cache import KVCache
from blockyard.stepping import Stats
from tests.helpers import LENGTH, choices, combinations, node, symbols, tiny
from tests.test_shapes import crossing_blocks, two_rows

MADE = 2 * LENGTH + 2  # so many that bounded rows are cut, twice


def greedy(model: nn.Module, prompts: list[list[int]], *, cache: bool, **more: Any) -> tuple[list[list[int]], Stats]:
    """The likeliest symbols after each prompt."""
    stats, rows = Stats(), [[] for _ in prompts]
    choose = [Chooser(0, None, 0) for _ in prompts]
    settings = {"max_tokens": MADE, **more}
    for step in decode_rows(model, prompts, choose, cache=cache, stats=stats, **settings):
        for row, symbol in step:
            rows[row].append(symbol)
    return rows, stats


def decoders() -> list[tuple[str, str]]:
    """(mixer, position) of every legal decoder of text, from the files on disk."""
    found = [(mixer, position) for mixer, position, axes in combinations("causal") if axes == 1]
    assert {position for _, position in found} == set(choices("position")) - _not_on_a_line()
    return found


def _not_on_a_line() -> set[str]:
    return {name for name in choices("position") if 1 not in node("position", name)[0].axes}


@torch.no_grad()
def same_from_a_cache(model: nn.Module) -> Stats:
    """Greedy symbols of three rows of different lengths: cached, not cached, and one alone."""
    prompts = [[1], [4, 2, 7], [3, 3]]
    cached, stats = greedy(model, prompts, cache=True)
    plain, without = greedy(model, prompts, cache=False)
    assert cached == plain
    assert [len(row) for row in cached] == [MADE] * 3
    assert without.cache_bytes is None
    assert stats.cuts == without.cuts
    assert greedy(model, prompts[:1], cache=True)[0] == cached[:1]
    return stats


@pytest.mark.parametrize(("mixer", "position"), decoders())
def test_greedy_rows_are_the_same_from_a_cache(mixer: str, position: str) -> None:
    model = tiny(causal=True, token_mixer=mixer, position=position)
    stats = same_from_a_cache(model)
    assert (stats.cache_bytes is not None) == all(hasattr(part, "init_cache") for part in model.mixers)


def test_rows_with_registers_are_the_same_from_a_cache() -> None:
    model = tiny(causal=True, position="rope", prefix=Prefix(registers=2))
    assert same_from_a_cache(model).cache_bytes is not None


class Stale(KVCache):
    """Planted: the value of the first token is lost where another follows."""

    def append(self, k: Tensor, v: Tensor, seq: Any) -> Any:
        k, v, k_seq = super().append(k, v, seq)
        return k, torch.cat([-v[:, :, :1], v[:, :, 1:]], 2) if v.shape[2] > 1 else v, k_seq


def test_planted_stale_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockyard.token_mixer.attention.KVCache", Stale)
    with pytest.raises(AssertionError):
        same_from_a_cache(tiny(causal=True, position="rope"))


@pytest.mark.parametrize(
    "mixer", [m for m in choices("token_mixer") if hasattr(node("token_mixer", m)[0], "init_cache")]
)
def test_what_a_cache_takes(mixer: str) -> None:
    """Keys and values grow with the row, a state does not."""
    if not node("token_mixer", mixer)[0].traits.causal:
        return
    model = tiny(causal=True, token_mixer=mixer)
    _, short = greedy(model, [[1]], cache=True, max_tokens=LENGTH - 1)
    _, several = greedy(model, [[1], [2]], cache=True, max_tokens=LENGTH - 1)
    assert several.cache_bytes == 2 * short.cache_bytes
    assert several.cache_bytes_per_token == short.cache_bytes_per_token
    if short.cache_bytes_per_token == 0:
        assert "in all, however long the row" in str(short)
    elif short.cache_bytes_per_token * (LENGTH - 1) == short.cache_bytes:
        assert f"{short.cache_bytes_per_token:,.0f} cache bytes per token" in str(short)


def test_keys_and_values_are_counted() -> None:
    _, stats = greedy(tiny(causal=True), [[1]], cache=True, max_tokens=5)
    assert stats.cache_bytes_per_token == 2 * 2 * 4 * 4 * 8  # k and v, layers, heads, head width, float64


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999, 1.0])
@pytest.mark.parametrize(("top_k", "temperature"), [(None, 1.0), (5, 0.7), (3, 2.0)])
def test_top_p_is_that_of_transformers(top_p: float, top_k: int | None, temperature: float) -> None:
    scores = torch.randn(40, 11, generator=torch.Generator().manual_seed(0)) * 2
    warped = TemperatureLogitsWarper(temperature)(None, scores)
    warped = TopKLogitsWarper(top_k)(None, warped) if top_k else warped
    wanted = TopPLogitsWarper(top_p)(None, warped).softmax(-1)
    assert_close(torch.stack([probabilities(row, temperature, top_k, top_p) for row in scores]), wanted)


def best_of_all(model: nn.Module, prompt: list[int], length: int, end: int | None, alpha: float, **more: Any) -> Any:
    """The best row by looking at every one: (score, symbols)."""
    found = []
    for size in range(length + 1):
        for row in itertools.product(range(11), repeat=size):
            closed = [*row, end] if size < length else list(row)
            if end in row or (size < length and end is None):
                continue
            logs = torch.log_softmax(model(torch.tensor([[*prompt, *closed]]), **more), -1)[0, len(prompt) - 1 :]
            total = sum(float(logs[place, symbol]) for place, symbol in enumerate(closed))
            found.append((total / len(closed) ** alpha, list(row)))
    return max(found)


@torch.no_grad()
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(("end", "alpha"), [(None, 1.0), (4, 0.0), (4, 1.0), (4, 2.0)])
def test_a_wide_beam_finds_the_best_of_all_rows(end: int | None, alpha: float, cache: bool) -> None:
    model = tiny(causal=True, position="rope")
    for parameter in model.parameters():
        parameter.mul_(0.6)
    made = beam_search(
        model, [1, 2], width=121, max_tokens=3, cache=cache, stats=Stats(), length_penalty=alpha, end=end
    )
    assert list(made) == best_of_all(model, [1, 2], 3, end, alpha)[1]


@torch.no_grad()
def test_a_narrow_beam() -> None:
    """One hypothesis is greedy; more find rows that are no worse; the cache changes nothing, rows are cut alike."""
    model = tiny(causal=True, position="learned")

    def searched(width: int, cache: bool) -> list[int]:
        return list(beam_search(model, [1, 2], width=width, max_tokens=MADE, cache=cache, stats=Stats()))

    assert [searched(1, True)] == greedy(model, [[1, 2]], cache=True)[0]
    assert searched(3, True) == searched(3, False)
    model = tiny(causal=True, position="rope")

    def score(row: list[int]) -> float:
        logs = torch.log_softmax(model(torch.tensor([[1, 2, *row]])), -1)[0, 1:]
        return sum(float(logs[place, symbol]) for place, symbol in enumerate(row))

    scores = [score(searched(width, True)) for width in (1, 4, 30)]
    assert scores == sorted(scores)


def recurrent() -> list[str]:
    """Mixers whose past is a state or another cache than attention's."""
    return [
        name
        for name in choices("token_mixer")
        if node("token_mixer", name)[0].traits.causal and hasattr(node("token_mixer", name)[0], "init_cache")
    ]


@torch.no_grad()
@pytest.mark.parametrize("mixer", recurrent())
def test_beams_reorder_every_cache(mixer: str) -> None:
    model = tiny(causal=True, token_mixer=mixer)
    made = [
        list(beam_search(model, [1, 2], width=3, max_tokens=LENGTH - 2, cache=cache, stats=Stats()))
        for cache in (True, False)
    ]
    assert made[0] == made[1]


@torch.no_grad()
@pytest.mark.parametrize("block", crossing_blocks())
def test_rows_written_from_sources(block: str) -> None:
    """Each from its own source, padded or not; cached or not; beams too."""
    model = two_rows(block=block, position="rope")
    source, lengths = symbols(3, 7, 5), torch.tensor([7, 3, 5])
    memory = model.encode(source, lengths)
    prompts = [[1], [1, 2, 3], [1]]
    cached, _ = greedy(model, prompts, cache=True, memory=memory)
    assert cached == greedy(model, prompts, cache=False, memory=memory)[0]
    for row in range(3):
        alone = model.encode(source[row : row + 1, : lengths[row]])
        assert greedy(model, prompts[row : row + 1], cache=True, memory=alone)[0] == [cached[row]]
        beams = [
            list(beam_search(model, prompts[row], width=3, max_tokens=6, cache=c, stats=Stats(), memory=alone, end=7))
            for c in (True, False)
        ]
        assert beams[0] == beams[1]
    best = best_of_all(model, [1], 2, 7, 1.0, memory=model.encode(source[:1]))[1]
    searched = beam_search(
        model, [1], width=11, max_tokens=2, cache=True, stats=Stats(), memory=model.encode(source[:1]), end=7
    )
    assert list(searched) == best


def test_a_row_ends_before_its_end_symbol() -> None:
    """The end symbol is not written, and other rows go on."""
    model = tiny(causal=True, position="rope")
    rows, _ = greedy(model, [[1], [4, 2]], cache=True)
    end = rows[0][3]
    stopped, stats = greedy(model, [[1], [4, 2]], cache=True, end=end)
    cut = [row[: row.index(end)] if end in row else row for row in rows]
    assert stopped == cut
    assert stats.tokens == sum(map(len, cut)) + sum(end in row for row in rows)


def test_scores_that_are_no_numbers_are_said() -> None:
    model = tiny(causal=True)
    with torch.no_grad():
        model.head.proj.weight.mul_(math.nan)
    with pytest.raises(UserError, match="scores are NaN"):
        list(beam_search(model, [1], width=2, max_tokens=2, cache=True, stats=Stats()))


def test_a_full_window_grows_no_more() -> None:
    model = tiny(causal=True, token_mixer="windowed_attention", options={"token_mixer": {"window": 3}})
    _, short = greedy(model, [[1]], cache=True, max_tokens=2)
    _, full = greedy(model, [[1]], cache=True, max_tokens=LENGTH - 1)
    assert short.cache_bytes_per_token > 0
    assert full.cache_bytes_per_token == 0
