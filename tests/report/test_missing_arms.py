"""An arm without a result is reported as refused, failed, not done or without value, never as short of seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockyard.report.comparison import Comparison, compare
from blockyard.sweep.cells import Refused
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import ARMS, sweep

DONE: dict[int, float | str] = {0: 0.90, 1: 0.91, 2: 0.905}
GOOD: dict[int, float | str] = {0: 0.93, 1: 0.95, 2: 0.94}
FAILED: dict[int, float | str] = dict.fromkeys(range(3), "failed")
OPEN: dict[int, float | str] = {0: "missing", 1: "queued", 2: "interrupted"}


def _outcome(
    outputs: Path, post: dict[int, float | str], pre: dict[int, float | str], *, expect: str | None = None
) -> Comparison:
    """A sweep of post, pre and an arm that was refused."""
    refused = Refused("alibi", {}, ("alibi does not fit",))
    values = {"post": post, "pre": pre, "alibi": {}}
    plan = sweep(outputs, ARMS, values, refused=[refused], question={"expect": expect})
    variants = {key: variant for key, variant in plan.variants.items() if key != "alibi"}
    return compare(SweepPlan(**{**plan.__dict__, "variants": variants}))


@pytest.mark.parametrize(
    ("pre", "verdict", "text", "answer"),
    [
        (GOOD, "better", "Better than post", "pre (+0.035) is better; alibi was refused."),
        (FAILED, "failed", "All 3 cells failed: RuntimeError: out of memory.", "yet: pre failed; alibi was refused."),
        (
            OPEN,
            "not done yet",
            "None of its cells is done yet: 1 missing, 1 queued, 1 interrupted.",
            "yet: at most 0 seeds in common with post, 3 are needed; alibi was refused; pre is not done yet.",
        ),
        (
            {0: 0.93, 1: "failed", 2: "failed"},
            "too few seeds",
            "Too few seeds: 1 common seed; a verdict needs at least 3, and the exact test can confirm one from 7 on. "
            "2 cells failed.",
            "yet: at most 1 seed in common with post, 3 are needed; alibi was refused.",
        ),
    ],
)
def test_what_became_of_an_arm_is_said(
    tmp_path: Path, pre: dict[int, float | str], verdict: str, text: str, answer: str
) -> None:
    result = _outcome(tmp_path, DONE, pre)
    assert result.arm("pre").verdict == verdict
    assert text in result.arm("pre").words
    assert (result.arm("alibi").verdict, result.arm("alibi").words) == (
        "refused",
        "It was refused: alibi does not fit.",
    )
    assert result.answer.endswith(answer)
    assert "too few seeds for" not in result.answer


def test_failed_cells_stand_beside_too_few_seeds(tmp_path: Path) -> None:
    arms = {**ARMS, "rms": ["norm=rms"]}
    values = {"post": DONE, "pre": GOOD, "alibi": FAILED, "rms": {0: 0.9, 1: "failed", 2: "failed"}}
    result = compare(sweep(tmp_path, arms, values))
    assert result.answer.endswith("pre (+0.035) is better; too few seeds for rms (2 of 3 failed); alibi failed.")
    assert [arm.failed for arm in result.arms] == [0, 0, 3, 2]


def test_a_baseline_without_figures_is_the_reason(tmp_path: Path) -> None:
    result = _outcome(tmp_path, FAILED, GOOD)
    assert result.arm("post").verdict == "baseline"
    assert "All 3 cells failed" in result.arm("post").words
    assert "No verdict on test/accuracy yet: the baseline post has no value" in result.answer


def test_runs_without_the_metric_gave_no_figure(tmp_path: Path) -> None:
    plan = sweep(tmp_path, ARMS, {"post": DONE, "pre": GOOD, "alibi": DONE}, summaries={"alibi": {"metrics": {}}})
    result = compare(plan)
    assert result.arm("alibi").verdict == "no value"
    assert result.answer.endswith("alibi gave no value.")


def test_an_expectation_says_what_became_of_its_arms(tmp_path: Path) -> None:
    result = _outcome(tmp_path, DONE, FAILED, expect="pre > post and post > alibi")
    assert result.expect is not None
    assert result.expect.verdict == "undecided"
    assert result.expect.reason == (
        "undecided: pre against post: pre failed; undecided: post against alibi: alibi was refused"
    )
