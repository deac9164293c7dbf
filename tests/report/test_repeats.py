"""An A/A arm: the same settings run again, and whether the platform gave the same values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from blockyard.report.comparison import compare
from blockyard.report.load.document import read_document
from tests.report.report_runs import sweep

ARMS = {"post": ["block=post_norm"], "again": ["block=post_norm", "repeat=1"], "pre": ["block=pre_norm"]}
PRE = {0: 0.80, 1: 0.81, 2: 0.83}


def test_equal_repeats_are_a_quiet_platform(tmp_path: Path) -> None:
    values = {0: 0.90, 1: 0.91, 2: 0.95}
    comparison = compare(sweep(tmp_path, ARMS, {"post": values, "again": values, "pre": PRE}), changes=False)
    assert comparison.answer.endswith(
        "This platform is quiet: post and again, which have the same settings, are equal to the bit in all metrics on "
        "3 seeds."
    )
    (row,) = comparison.repeats
    assert (row.arms, row.seeds, row.equal, row.within) == (["post", "again"], [0, 1, 2], 3, 0)
    assert read_document(comparison.as_dict()).repeats == comparison.repeats


def test_the_differences_within_a_seed_stand_beside_those_between_seeds(tmp_path: Path) -> None:
    values = {"post": {0: 0.90, 1: 0.91, 2: 0.95}, "again": {0: 0.90, 1: 0.93, 2: 0.94}, "pre": PRE}
    comparison = compare(sweep(tmp_path, ARMS, values), changes=False)
    (row,) = comparison.repeats
    # Of a one-way layout: the mean square within the seeds.
    pairs = np.array([[values[arm][seed] for arm in ("post", "again")] for seed in range(3)])
    within = math.sqrt(((pairs - pairs.mean(axis=1, keepdims=True)) ** 2).sum() / 3)
    assert row.within == pytest.approx(within)
    assert row.between == pytest.approx(np.std(pairs[:, 0], ddof=1))
    assert row.equal == 1
    assert (
        "This platform is not quiet: post and again, which have the same settings, have a standard deviation of 0.0091 "
        "in test/accuracy within a seed; between seeds it is 0.026; on 1 of 3 seeds they are equal to the bit."
    ) in comparison.answer


def test_three_repeats_are_one_group_and_a_metric_that_is_not_compared_counts_as_well(tmp_path: Path) -> None:
    arms = {**ARMS, "third": ["block=post_norm", "repeat=2"]}
    values = {"post": {0: 0.9}, "again": {0: 0.9}, "third": {0: 0.9}}
    other = {"third": {"metrics": {"test/accuracy": 0.9, "val/accuracy": 0.7}}}
    comparison = compare(sweep(tmp_path, arms, values, summaries=other), changes=False)
    (row,) = comparison.repeats
    assert row.arms == ["post", "again", "third"]
    assert row.between is None
    sentence = "not quiet: post, again and third, which have the same settings, have the same test/accuracy, and other"
    assert sentence in comparison.answer


def test_without_a_repeat_or_a_common_seed_nothing_is_said(tmp_path: Path) -> None:
    plan = sweep(tmp_path / "norms", {"post": ARMS["post"], "pre": ARMS["pre"]}, {"post": PRE, "pre": PRE})
    comparison = compare(plan, changes=False)
    assert "platform" not in comparison.answer
    assert "repeats" not in comparison.as_dict()
    apart = sweep(tmp_path / "apart", ARMS, {"post": {0: 0.9}, "again": {1: 0.9}, "pre": PRE})
    assert compare(apart, changes=False).repeats == []
