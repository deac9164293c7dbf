"""A question that is changed after results of it were known says so, wherever its answer stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from blockyard.report.comparison import compare
from blockyard.sweep.plan.history import question_hash, store_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.report.report_runs import NORMS, sweep

VALUES = {"post": {0: 0.90, 1: 0.91, 2: 0.905}, "pre": {0: 0.93, 1: 0.95, 2: 0.94}}
TIMES = ("2026-11-01T10:00:00.000Z", "2026-11-02T10:00:00.000Z", "2026-11-03T10:00:00.000Z")


def registered(plan: SweepPlan, time: str, **question: Any) -> SweepPlan:
    changed = replace(plan, question={**plan.question, **question}, facts={**plan.facts, "time": time})
    return store_plan(changed).plan


def answer(plan: SweepPlan) -> str:
    comparison = compare(str(plan.folder))
    assert comparison.as_dict()["answer"] == comparison.answer
    return comparison.answer


def test_a_question_that_was_set_before_its_runs_is_not_amended(tmp_path: Path) -> None:
    plan = sweep(tmp_path, NORMS, {"post": {0: "missing"}, "pre": {0: "missing"}})
    first = registered(plan, TIMES[0], expect="pre > post")
    assert first.facts["asked"] == {"hash": question_hash(first), "time": TIMES[0], "finished": 0, "amendments": []}
    assert registered(first, TIMES[1], expect="pre ~ post", margin=0.01).facts["asked"]["amendments"] == []


def test_a_change_after_results_is_counted_and_told(tmp_path: Path) -> None:
    plan = sweep(tmp_path, NORMS, VALUES, question={"expect": "pre > post"})
    (plan.folder / "plan.json").unlink()
    first = registered(plan, TIMES[0])
    assert first.facts["asked"]["finished"] == 6  # runs of another sweep, or of `train`
    assert answer(first).endswith("Asked after 6 of its 6 runs had started.")
    same = registered(first, TIMES[1], claim="In other words")
    assert same.facts["asked"] == first.facts["asked"]
    second = registered(same, TIMES[1], expect="pre >= post", margin=0.2)
    text = "Asked for the 2nd time: `expect` and `margin` were changed after 6 of its cells had finished"
    assert answer(second).endswith(f"{text}.")
    assert second.facts["asked"]["time"] == TIMES[1]
    third = registered(SweepPlan.load(second.folder), TIMES[2], margin=0.1)
    assert answer(third).endswith(
        "Asked for the 3rd time:" + text.partition("time:")[2] + "; then `margin` was changed "
        "after 6 of its cells had finished."
    )
    assert [change["time"] for change in third.facts["asked"]["amendments"]] == list(TIMES[1:])


def test_a_plan_of_an_earlier_release_is_amended_too(tmp_path: Path) -> None:
    plan = sweep(tmp_path, NORMS, VALUES, question={"expect": "pre > post"})
    assert "asked" not in SweepPlan.load(plan.folder).facts
    changed = registered(plan, TIMES[1], expect="post > pre")
    assert [change["keys"] for change in changed.facts["asked"]["amendments"]] == [["expect"]]
