"""Rows written from scores: the same from a cache and without for every decoder, in batches as alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from blockyard.generate.sampling import probabilities
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import describe_cache
from blockyard.model._prefix import Prefix
from blockyard.ops.cache import KVCache
from blockyard.token_mixer.none import EmptyCache
from tests.components.model.tiny_models import blocks_with_cross, tiny_encoder_decoder
from tests.generate.decoding import MAX_TOKENS, greedy
from tests.support.helpers import (
    LENGTH,
    choices,
    combinations,
    cycle_model,
    has,
    node,
    reads_later,
    tiny,
    token_ids,
    traits,
)
from tests.support.pairwise import each_once


def decoders() -> list[tuple[str, str]]:
    """(mixer, position) of every legal decoder of text, from the files on disk."""
    pairs = [(mixer, position) for mixer, position, axes in combinations("causal") if axes == 1]
    on_a_line = {name for name in choices("position") if 1 in node("position", name)[0].axes}
    assert {position for _, position in pairs} == {name for name in on_a_line if not reads_later(name)}
    return pairs


@torch.no_grad()
def same_from_a_cache(model: nn.Module) -> Stats:
    """Greedy symbols of three rows of different lengths: cached, not cached, and one alone."""
    prompts = [[1], [4, 2, 7], [3, 3]]
    cached, stats = greedy(model, prompts, cache=True)
    plain, without = greedy(model, prompts, cache=False)
    assert cached == plain
    assert [len(row) for row in cached] == [MAX_TOKENS] * 3
    assert without.cache_bytes is None
    assert stats.cuts == without.cuts
    assert greedy(model, prompts[:1], cache=True)[0] == cached[:1]
    return stats


@pytest.mark.parametrize(("mixer", "position"), each_once(decoders()))
def test_greedy_rows_are_the_same_from_a_cache(mixer: str, position: str) -> None:
    """Each mixer and each position; that scores from a cache are those without is tested for every pair of them."""
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


def keeping() -> list[str]:
    """Mixers of decoders that keep something of the past, as their YAML gives them."""
    return [name for name in choices("token_mixer") if traits(name).causal and has(name, "init_cache")]


@pytest.mark.parametrize("mixer", keeping())
@pytest.mark.sampled(2)
def test_what_a_cache_takes(mixer: str) -> None:
    """Bytes per token are what the last token added to the cache, and are printed; constant states add none."""
    model = tiny(causal=True, token_mixer=mixer)
    _, before = greedy(model, [[1]], cache=True, max_tokens=LENGTH - 2)
    _, short = greedy(model, [[1]], cache=True, max_tokens=LENGTH - 1)
    _, several = greedy(model, [[1], [2]], cache=True, max_tokens=LENGTH - 1)
    assert several.cache_bytes == 2 * short.cache_bytes
    assert several.cache_bytes_per_token == short.cache_bytes_per_token == short.cache_bytes - before.cache_bytes
    grows = f"{short.cache_bytes_per_token:,.0f} cache bytes per token"
    stays = f"{short.cache_bytes:,} cache bytes at any length"
    present, not_said = (grows, stays) if short.cache_bytes_per_token else (stays, grows)
    assert f"{short.method}, {present}" in str(short)
    assert not_said not in str(short)


WAYS = {"attention": "key-value cache", "gru": "recurrent state", "conv": "cache of past inputs"}


@pytest.mark.parametrize("pattern", [["attention"], ["gru"], ["conv"], ["gru", "attention"], ["none", "gru"]])
def test_the_kind_of_cache_is_printed(pattern: list[str]) -> None:
    """Of every kind of layer; or that nothing is cached, and why."""
    model = cycle_model(*pattern, depth=2, causal=True)
    kept = " and ".join(WAYS[name] for name in pattern if name in WAYS)
    assert f"tokens/s, {kept}, " in str(greedy(model, [[1]], cache=True)[1])
    message = str(greedy(model, [[1]], cache=False)[1])
    assert "full recomputation: the whole sequence ran for each token (cache=false)" in message
    assert kept not in message


def test_a_mixer_without_a_cache_is_named() -> None:
    without = [name for name in choices("token_mixer") if traits(name).causal and not has(name, "init_cache")]
    assert without
    for name in without:
        model = cycle_model("attention", name, depth=2, causal=True)
        message = str(greedy(model, [[1]], cache=True, max_tokens=2)[1])
        named = type(model.mixers[1]).__name__
        assert f"full recomputation: the whole sequence ran for each token ({named} has no cache)" in message


def test_a_cache_of_ones_own_needs_no_kind() -> None:
    class Own:
        bytes = 0

    assert describe_cache(SimpleNamespace(layers=[Own(), KVCache(1, 1, 1)])) == "cache and key-value cache"
    assert describe_cache(SimpleNamespace(layers=[EmptyCache()])) == "nothing cached (no token reads another)"


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


@torch.no_grad()
@pytest.mark.parametrize("block", blocks_with_cross())
@pytest.mark.sampled(2)
def test_rows_written_from_sources(block: str) -> None:
    """Each from its own source, padded or not; cached or not."""
    model = tiny_encoder_decoder(block=block, position="rope")
    source, lengths = token_ids(3, 7, 5), torch.tensor([7, 3, 5])
    memory = model.encode(source, lengths)
    prompts = [[1], [1, 2, 3], [1]]
    cached, _ = greedy(model, prompts, cache=True, memory=memory)
    assert cached == greedy(model, prompts, cache=False, memory=memory)[0]
    for row in range(3):
        alone = model.encode(source[row : row + 1, : lengths[row]])
        assert greedy(model, prompts[row : row + 1], cache=True, memory=alone)[0] == [cached[row]]


def test_a_row_ends_before_its_end_symbol() -> None:
    """The end symbol is not written, and other rows go on."""
    model = tiny(causal=True, position="rope")
    sequences, _ = greedy(model, [[1], [4, 2]], cache=True)
    end = sequences[0][3]
    stopped, stats = greedy(model, [[1], [4, 2]], cache=True, end=end)
    cut = [row[: row.index(end)] if end in row else row for row in sequences]
    assert stopped == cut
    assert stats.tokens == sum(map(len, cut))
    assert stats.steps == max(len(prompt) + len(row) for prompt, row in zip([[1], [4, 2]], cut, strict=True))
    assert f"{stats.tokens} tokens in {stats.steps} steps, {stats.tokens / stats.seconds:,.1f} tokens/s" in str(stats)


def test_a_full_window_grows_no_more() -> None:
    model = tiny(causal=True, token_mixer="windowed_attention", options={"token_mixer": {"window": 3}})
    _, short = greedy(model, [[1]], cache=True, max_tokens=2)
    _, full = greedy(model, [[1]], cache=True, max_tokens=LENGTH - 1)
    assert short.cache_bytes_per_token > 0
    assert full.cache_bytes_per_token == 0
