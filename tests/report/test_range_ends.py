"""A tuned value at the end of what was tried is told, once for each end."""

from __future__ import annotations

from typing import Any

import pytest

from blockyard.report.arms.fairness import range_ends
from blockyard.report.load.arms import ArmRuns, ComparisonInput

SPACE = {"low": 1e-4, "high": 1e-2, "log": True}


def sentences(question: dict[str, Any], **chosen: Any) -> list[str]:
    arms = [ArmRuns(name, chosen={"optimizer.lr": value}) for name, value in chosen.items()]
    return list(range_ends(ComparisonInput("title", arms, [], question=question)))


@pytest.mark.parametrize(
    ("values", "chosen", "end"),
    [
        ([0.001, 0.002, 0.004], 0.004, "the largest of 0.001, 0.002, 0.004"),
        ([0.004, 0.001], 0.001, "the smallest of 0.001, 0.004"),
        ([0.001, 0.002, 0.004], 0.002, None),
        ([0.0, 0.1, 0.2], 0.0, None),  # a rate cannot be smaller
        ([0.001], 0.001, None),
        (["adamw", "sgd"], "sgd", None),
        ([True, False], True, None),
    ],
)
def test_lists_of_values(values: list[Any], chosen: Any, end: str | None) -> None:
    result = sentences({"tune": {"optimizer.lr": values}}, rope=chosen)
    more = "a wider range may hold a better one"
    assert result == ([] if end is None else [f"optimizer.lr: {end} was best for rope ({chosen:.4g}); {more}"])


@pytest.mark.parametrize(
    ("value", "end"), [(1.1e-4, "lower"), (1.5e-4, None), (1e-3, None), (6e-3, None), (9e-3, "upper")]
)
def test_ranges_on_their_own_scale(value: float, end: str | None) -> None:
    result = sentences({"search": {"space": {"optimizer.lr": SPACE}}}, rope=value)
    assert [f"the {end} end of 0.0001 to 0.01" in text for text in result] == ([True] if end else [])


def test_arms_share_a_sentence_and_others_have_none() -> None:
    result = sentences({"tune": {"optimizer.lr": [1, 2, 3]}}, a=3, b=2, c=3, d=1)
    assert [text.split(" was best for ")[1].split(";")[0] for text in result] == ["a (3), c (3)", "d (1)"]
    assert sentences({"tune": {"optimizer.lr": [1, 2]}}, a=None) == []
    assert sentences({}, a=3) == []
