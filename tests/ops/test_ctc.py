"""Connectionist temporal classification against a sum over all alignments."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.ops import ctc
from blockyard.ops.ctc import collapse, greedy, least_tokens, prefix_beam

BLANK, V = 3, 4


def distributions(tokens: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(tokens, V, generator=generator, dtype=torch.float64)).log_softmax(1)


def every_text(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """The log probability of every sequence of labels, by adding up alignments."""
    scores: dict[tuple[int, ...], float] = {}
    for alignment in itertools.product(range(V), repeat=len(log_probs)):
        labels = [label for label, _ in itertools.groupby(alignment) if label != BLANK]
        score = math.exp(sum(float(log_probs[n, label]) for n, label in enumerate(alignment)))
        scores[tuple(labels)] = scores.get(tuple(labels), 0.0) + score
    return {labels: math.log(score) for labels, score in scores.items()}


@pytest.mark.parametrize("tokens", [1, 2, 5, 6])
def test_the_loss_of_torch_and_a_search_that_drops_nothing_are_the_sum_over_alignments(tokens: int) -> None:
    log_probs = distributions(tokens)
    expected = every_text(log_probs)
    assert math.fsum(math.exp(score) for score in expected.values()) == pytest.approx(1)
    scores = {tuple(labels): score for labels, score in prefix_beam(log_probs, BLANK, None) if score > -math.inf}
    assert scores == pytest.approx(expected)
    for labels, score in expected.items():
        target = torch.tensor([labels], dtype=torch.long).reshape(1, -1)
        loss = F.ctc_loss(
            log_probs[:, None], target, torch.tensor([tokens]), torch.tensor([len(labels)]), BLANK, reduction="sum"
        )
        assert float(loss) == pytest.approx(-score)
        assert least_tokens(labels) <= tokens


@pytest.mark.full
def test_a_narrow_search_is_a_lower_bound_and_may_beat_the_best_alignment() -> None:
    better = 0
    for seed in range(40):
        log_probs = distributions(6, seed)
        expected = every_text(log_probs)
        best, score = prefix_beam(log_probs, BLANK, 2)[0]
        assert score <= expected[tuple(best)] + 1e-9
        (one,) = greedy(log_probs[None], torch.tensor([6]), BLANK)
        whole = prefix_beam(log_probs, BLANK, None)[0][1]
        assert whole >= expected[tuple(one)] - 1e-9
        better += whole > expected[tuple(one)] + 1e-9
    assert better


def test_a_search_that_adds_nothing_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the most likely alignment of a prefix in place of the sum."""
    log_probs = distributions(4)
    expected = every_text(log_probs)
    monkeypatch.setattr(ctc, "_add", max)
    scores = {tuple(labels): score for labels, score in prefix_beam(log_probs, BLANK, None) if score > -math.inf}
    assert scores != pytest.approx(expected)


def test_greedy_collapses_the_most_likely_alignment() -> None:
    assert collapse([0, 0, 3, 1, 3, 1, 2, 2], BLANK) == [0, 1, 1, 2]
    assert collapse([3, 3], BLANK) == collapse([], BLANK) == []
    logits = F.one_hot(torch.tensor([[0, 0, 3, 1, 1], [3, 2, 2, 3, 2]]), V).float()
    assert greedy(logits, torch.tensor([5, 3]), BLANK) == [[0, 1], [2]]


def test_repeats_need_a_blank_between() -> None:
    assert [least_tokens(labels) for labels in ([], [1], [1, 2], [1, 1], [1, 1, 1, 2])] == [0, 1, 2, 3, 6]
