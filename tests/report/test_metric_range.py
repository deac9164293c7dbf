"""Intervals of metrics that are shares, and intervals beside a corrected verdict that they do not agree with."""

from __future__ import annotations

import pytest

from blockyard.report.load.document import read_document
from blockyard.report.render.columns import UNCORRECTED, notes, quality
from blockyard.report.render.latex import latex
from blockyard.report.stats.metric_range import clipped, metric_range
from blockyard.report.stats.verdict import NO_DIFFERENCE, compare_arms
from tests.report.page_data import comparison, disagreeing


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        ("test/accuracy", [0.2, 1.0], (0.0, 1.0)),
        ("val/f1_score@body", [0.5], (0.0, 1.0)),
        ("test/top5", [0.9], (0.0, 1.0)),
        ("test/loss", [0.5], None),
        ("test/accuracy", [20.0, 90.0], None),  # percent, or a metric of the user's own
        ("step_seconds", [0.01], None),
    ],
)
def test_only_shares_have_a_range(metric: str, values: list[float], expected: tuple[float, float] | None) -> None:
    assert metric_range(metric, values) == expected


def test_intervals_of_shares_end_at_their_range() -> None:
    """Two seeds of 0.25 and 0.42 had the interval [-0.75, 1.42]: no accuracy is there."""
    values = {"none": {0: 0.25, 1: 0.42}, "rope": {0: 0.9, 1: 0.2}}
    free = compare_arms(values, "none", "max")
    kept = compare_arms(values, "none", "max", limits=(0.0, 1.0))
    assert free["none"].mean.interval[0] < 0
    assert free["none"].mean.interval[1] > 1
    assert kept["none"].mean.interval == (0.0, 1.0)
    assert kept["rope"].difference.interval == (-1.0, 1.0)
    assert kept["rope"].difference.t_p == free["rope"].difference.t_p
    assert clipped((0.2, 0.3), (0.0, 1.0)) == (0.2, 0.3)
    assert clipped((0.2, 1.3), None) == (0.2, 1.3)


def test_tables_say_that_an_interval_was_cut_off() -> None:
    result = comparison(arms=2)
    result["ranges"] = {"test/accuracy": [0, 1]}
    assert "cut off" not in notes(read_document(result))[0]
    result["arms"][0]["interval"] = [0.7, 1]
    assert "cut off at 0 and 1" in notes(read_document(result))[0]


def test_a_row_whose_interval_and_verdict_disagree_is_marked() -> None:
    result = disagreeing()
    assert quality(read_document(result))[1][1][3].endswith(UNCORRECTED)
    assert not any(row[3].endswith(UNCORRECTED) for row in quality(read_document(result))[1][2:])
    assert any(note.startswith(UNCORRECTED) for note in notes(read_document(result)))
    assert not any(note.startswith(UNCORRECTED) for note in notes(read_document(comparison(arms=3))))
    assert "*: the interval leaves 0 out" in latex(read_document(result))


def test_the_verdict_of_such_an_arm_explains_it() -> None:
    gaps = [0.006, 0.008, 0.001, 0.009, 0.007]
    noise = [0.01, -0.02, 0.02, -0.01, 0.0]
    base = dict.fromkeys(range(5), 0.9)
    values = {"base": base, "near": {seed: base[seed] + 0.4 * gap - 0.0006 for seed, gap in enumerate(gaps)}}
    values |= {f"arm_{k}": {seed: base[seed] + noise[(seed + k) % 5] for seed in range(5)} for k in range(6)}
    result = compare_arms(values, "base", "max")["near"]
    assert result.difference.interval[0] > 0
    assert result.verdict == NO_DIFFERENCE
    assert "leaves 0 out" in result.explanation


def test_a_latex_caption_is_a_claim_and_a_metric() -> None:
    result = comparison(arms=3)
    (caption,) = [line for line in latex(read_document(result)).splitlines() if line.startswith(r"\caption{")]
    assert result["claim"] + ". test/accuracy: more is better." in caption.replace("\\", "")
    assert len(caption) < 200
    assert latex(read_document(result | {"claim": "Is it better?"})).count("better?.") == 0
