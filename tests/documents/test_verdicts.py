"""docs/verdicts.json holds what its verdicts were computed from, and nothing that was answered is lost."""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockyard.atomic_files import write_json
from blockyard.report.comparison import compare
from blockyard.sweep.plan.history import store_plan
from blockyard.sweep.plan.sweep_plan import PlanFacts
from tests.golden.write import FOLDER
from tests.report.report_runs import NORMS, sweep
from tools import recomputed, verdicts

VALUES: dict[str, dict[int, float | str]] = {
    "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.9},
    "pre": {0: 0.93, 1: 0.95, 2: 0.94, 3: "failed"},
}
BEFORE = "2026-01-01T00:00:00.000Z"  # the runs of a sweep here are of the next day


def records() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads(verdicts.DATA.read_text(encoding="utf-8"))
    return loaded


def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **question: Any) -> dict[str, Any]:
    """The record of a sweep of these values whose file asks the question."""
    asked = {"expect": "pre > post", "metric": "test/accuracy", **question}
    plan = sweep(tmp_path, NORMS, VALUES, question=asked)
    (plan.folder / "plan.json").unlink()
    facts: PlanFacts = {**plan.facts, "time": BEFORE}
    if "success" in question:
        facts["metric"] = {"name": f"success({question['success']})", "direction": "max"}
    plan = store_plan(replace(plan, facts=facts)).plan
    write_json(plan.folder / "comparison.json", compare(plan, changes=False).as_dict())
    (tmp_path / "sweeps").mkdir(exist_ok=True)
    (tmp_path / "sweeps" / "norms.yaml").write_text(json.dumps({"claim": "x", **asked}))
    monkeypatch.setattr(verdicts, "ROOT", tmp_path)
    record: dict[str, Any] = json.loads(json.dumps(verdicts.record(plan.folder)))
    return record


def test_every_answer_that_kept_its_values_is_what_its_own_rule_says() -> None:
    """An answer of an earlier rule may be judged otherwise today; `--check` prints it, and the page keeps both."""
    results = verdicts.checks(records())
    assert [result for result in results if result.wrong] == []
    computed = sum(result.missing is None for result in results)
    assert computed >= 7
    assert f"{computed} of {len(results)} answers computed again" in "\n".join(verdicts.check_lines(results))


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"expect": "pre > post and post >= pre", "margin": 0.01},
        {"until": {"first": 2, "most": 4}, "margin": 0.01},
        {"metric": None, "success": "test/accuracy >= 0.92"},
    ],
)
def test_a_record_is_computed_again_from_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: dict[str, Any]
) -> None:
    record = recorded(tmp_path, monkeypatch, **question)
    assert record["registered"]
    assert record["arms"][1]["failed"] == {"3": "RuntimeError: out of memory"}
    assert recomputed.check("norms", record, record["rule"]) == recomputed.Check("norms", record["rule"])


def test_what_is_not_as_recorded_is_an_error_under_its_own_rule_and_told_under_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(tmp_path, monkeypatch)
    other = copy.deepcopy(record)
    other["arms"][1]["values"] = {"0": 0.80, "1": 0.81, "2": 0.80}
    own = recomputed.check("norms", other, record["rule"])
    assert own.wrong[0] == "supported as recorded, contradicted as computed"
    assert any(text.startswith("mean of pre: 0.94") for text in own.wrong)
    later = recomputed.check("norms", other, "0123456789")
    assert (later.wrong, later.changed[0]) == ((), "supported as recorded, contradicted as computed")
    lines = verdicts.check_lines([own, later, recomputed.check("old", {"rule": "9"}, "9")])
    assert lines[-3] == f"norms: {later.changed[-1]}; recorded by rule {record['rule']}"
    assert lines[-2:] == [
        "2 of 3 answers computed again from their values: 0 as recorded",
        "1 cannot be computed again: the values of its seeds were not kept",
    ]


def test_an_answer_that_is_replaced_takes_its_note_and_its_confirmation_along() -> None:
    first = {"date": "2026-11-01", "verdict": "supported", "seeds": 5, "cells": [10, 10], "question": {"seeds": "a"}}
    withdrawn = first | {"withdrawn": "too short", "confirmed": {"verdict": "undecided"}, "rule": "1234567890"}
    again = first | {"date": "2026-11-02", "question": {"seeds": "b"}}
    (answer,) = verdicts.with_history(again, withdrawn)["asked"]
    assert (answer["withdrawn"], answer["confirmed"], answer["rule"]) == (
        "too short",
        {"verdict": "undecided"},
        "1234567890",
    )
    assert "withdrawn" not in verdicts.with_history(again, withdrawn)


def test_the_page_names_what_fresh_seeds_did_not_confirm() -> None:
    page = verdicts.PAGE.read_text(encoding="utf-8")
    failed = []
    for one in records():
        if "confirmed" in one and one["confirmed"]["verdict"] != one["verdict"]:
            failed.append(f"[`{one['sweep']}`](#{one['sweep']})")
            section = page.partition(f"\n## {one['sweep']}\n")[2].partition("\n## ")[0]
            assert f"Does not confirm: {one['confirmed']['verdict']} on" in section
    assert f"Not confirmed: {', '.join(failed)}." in page
    assert len(failed) >= 2


def test_every_record_says_by_which_rule_it_was_judged() -> None:
    assert [one["sweep"] for one in records() if not one["rule"]] == []


def test_the_page_says_how_many_questions_share_their_baseline() -> None:
    plans = [json.loads(path.read_text("utf-8")) for path in (FOLDER / "plans").glob("*.json")]
    counts: Counter[tuple[str, int]] = Counter()
    for plan in plans:
        variant = plan["variants"].get(plan["question"]["baseline"])  # a tuned one has settings of its own
        if variant is not None:
            counts[variant, plan["question"]["seeds"][0]] += 1
    assert sum(count for count in counts.values() if count > 1) == verdicts.SHARED_BASELINES
    assert f"{verdicts.SHARED_BASELINES} questions have the same baseline runs" in verdicts.PAGE.read_text("utf-8")


def test_questions_that_were_registered_anew_are_those_of_their_files() -> None:
    """A registered question that is changed afterwards would be another one."""
    answered = {one["sweep"]: one for one in records()}
    for name, facts in verdicts.registered().items():
        assert facts["question"] == verdicts.digest(name), name
        assert facts["seeds"].startswith(("1000", "2000")), name
        if name in answered and answered[name]["question"] != verdicts.question(name):
            assert answered[name].get("withdrawn") or answered[name].get("second_difference"), name
