"""Decision accuracy of the rungs of a ladder."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from blockyard.report.arms.size_ladder import decisions_answer
from blockyard.report.load.document import DecisionRow
from blockyard.report.stats.decisions import Decisions, decision_accuracy, mean_gaps, pair_gaps, told_apart


def test_the_share_of_pairs_is_kendalls() -> None:
    """Without ties the share of pairs with the same sign is (tau + 1) / 2."""
    draw = np.random.default_rng(0)
    names = [f"arm{number}" for number in range(9)]
    for _ in range(20):
        small, large = draw.normal(size=(2, 9))
        gaps = [
            mean_gaps(pair_gaps({name: {0: x} for name, x in zip(names, row, strict=True)})) for row in (small, large)
        ]
        [count] = decision_accuracy(gaps, ())
        assert count.pairs == 36
        assert count.kept / count.pairs == pytest.approx((stats.kendalltau(small, large).statistic + 1) / 2)


def test_pairs_that_the_seeds_tell_apart_are_counted_again() -> None:
    rungs = [
        {"a": {0: 1.0, 1: 1.0, 2: 1.0}, "b": {0: 2.0, 1: 2.0, 2: 2.0}, "c": {0: 3.0, 1: 3.0, 2: 3.0}},
        {"a": {0: 1.0, 1: 1.1, 2: 1.2}, "b": {0: 1.9, 1: 2.2, 2: 2.1}, "c": {0: 2.5, 1: 0.2, 2: 3.3}},
    ]
    gaps = [pair_gaps(rung) for rung in rungs]
    decided = told_apart(gaps[1])
    for pair in itertools.combinations("abc", 2):
        first, second = ([*rungs[1][name].values()] for name in pair)
        assert (pair in decided) == (stats.ttest_rel(first, second).pvalue < 0.05)
    assert decided == {("a", "b")}
    [count] = decision_accuracy([mean_gaps(rung) for rung in gaps], decided)
    # b and c turn round by noise alone.
    assert count == Decisions(pairs=3, kept=2, decided=1, decided_kept=1)


def test_a_level_pair_has_no_sign_to_keep_and_keeps_none() -> None:
    pair, other = ("a", "b"), ("a", "c")
    assert decision_accuracy([{pair: 0.1, other: 0.0}, {pair: 0.0, other: 1.0}], {other}) == [Decisions(1, 0, 1, 0)]


def test_a_pair_without_a_value_at_a_rung_does_not_count_there() -> None:
    pair, other = ("a", "b"), ("a", "c")
    counts = decision_accuracy([{pair: 0.1}, {pair: -0.1, other: 1.0}, {pair: 0.2, other: 1.0}], ())
    assert [(count.pairs, count.kept) for count in counts] == [(1, 1), (2, 1)]


def test_seeds_are_paired_and_two_are_too_few() -> None:
    assert pair_gaps({"a": {0: 1.0, 1: 2.0}, "b": {1: 5.0, 2: 9.0}}) == {("a", "b"): [-3.0]}
    assert told_apart({("a", "b"): [1.0, 1.0]}) == set()
    assert told_apart({("a", "b"): [1.0, 1.0, 1.0]}) == {("a", "b")}


def test_the_answer_counts_the_pairs_that_are_told_apart() -> None:
    row = DecisionRow(metric="test/loss", rung="1e11", largest="1e12", pairs=66, kept=47, decided=40, decided_kept=36)
    other = replace(row, metric="test/accuracy")
    assert decisions_answer([row, other], "test/loss") == (
        "Pairs of arms with the sign of their difference at 1e12: 47 of 66 (71 %) at 1e11; of those that the seeds "
        "tell apart there, 36 of 40 (90 %)."
    )
    none = replace(row, decided=0, decided_kept=0)
    assert decisions_answer([none], "test/loss").endswith("at 1e11; the seeds tell none of them apart there.")
    assert decisions_answer([other], "test/loss") == ""
