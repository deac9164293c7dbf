"""Rows and clauses have one verdict of each comparison, and the answer says what was tuned on the tested seeds."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockyard.report.arms.answer import tuned_sentence
from blockyard.report.comparison import compare
from blockyard.report.render.markdown import markdown
from blockyard.sweep.stopping.decisions import Judgement, comparisons, judge
from blockyard.sweep.stopping.rule import StoppingRule
from tests.report.report_runs import norms_sweep

BY_CLAUSE = [
    ("pre > post", "better"),
    ("post > pre", "better"),
    ("post >= pre", "better"),
    ("pre ~ post", "better"),
    ("pre >= post", "better"),
]


@pytest.mark.parametrize(("expect", "verdict"), BY_CLAUSE)
def test_a_row_has_the_verdict_of_its_clause(tmp_path: Path, expect: str, verdict: str) -> None:
    result = compare(norms_sweep(tmp_path, question={"expect": expect, "margin": 0.005}))
    row = result.arm("pre")
    assert row.verdict == verdict
    assert expect in row.words
    other = result.arm("alibi")
    assert other.verdict == "not asked"
    assert other.difference is not None
    assert other.difference.interval is not None
    assert other.difference.holm_p is None
    assert "Not asked: alibi (" in result.answer
    assert "is better" not in result.answer


def test_both_sides_of_a_margin_have_their_words(tmp_path: Path) -> None:
    values: dict[str, dict[int, float | str]] = {
        "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.9},
        "pre": {0: 0.85, 1: 0.91, 2: 0.89, 3: 0.83},
    }
    result = compare(norms_sweep(tmp_path, values=values, question={"expect": "post >= pre", "margin": 0.02}))
    assert result.arm("pre").verdict == "not better by the margin"
    assert "p: paired t test;" in markdown(result)


def test_an_arm_that_only_other_clauses_name_is_not_asked(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, question={"expect": "pre > alibi"}))
    assert [row.verdict for row in result.arms] == ["baseline", "not asked", "not asked"]
    assert compare(norms_sweep(tmp_path / "none")).arm("pre").verdict == "better"


def test_rows_and_clauses_agree_where_clauses_share_the_error(tmp_path: Path) -> None:
    """Over the arms pre would be corrected for two comparisons, among the clauses it is alone against zero."""
    result = compare(norms_sweep(tmp_path, question={"expect": "pre > post and alibi ~ post", "margin": 0.001}))
    assert result.expect is not None
    row = result.arm("pre")
    assert row.difference is not None
    assert row.difference.holm_p == pytest.approx(row.difference.t_p)
    assert result.arm("alibi").verdict == "undecided"


def test_a_row_until_it_is_decided_has_it_too(tmp_path: Path) -> None:
    until = {"expect": "pre > post", "until": {"first": 3, "most": 4}}
    result = compare(norms_sweep(tmp_path, question=until))
    assert result.expect is not None
    assert result.arm("pre").verdict == {"supported": "better"}.get(result.expect.verdict, "undecided")
    assert result.arm("alibi").verdict == "not asked"


def test_the_verdict_without_its_reason_says_its_sense(tmp_path: Path) -> None:
    values: dict[str, dict[int, float | str]] = {
        "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.9},
        "pre": {0: 0.902, 1: 0.909, 2: 0.906, 3: 0.9},
    }
    result = compare(norms_sweep(tmp_path, values=values, question={"expect": "pre > post", "margin": 0.02}))
    sense = "not shown to matter: smaller than 0.02"
    assert f"expected: pre > post (margin 0.02): contradicted ({sense})" in markdown(result).replace("\\", "")
    assert sense in result.answer
    document = result.as_dict()
    assert document["expect"]["sense"] == sense
    assert document["expect"]["verdict"] == "contradicted"


def tuned(question: dict[str, Any], **settings: int | None) -> str:
    rows: list[Any] = []
    for name, tried in settings.items():
        rows.append(SimpleNamespace(name=name, n=5, budget=tried and SimpleNamespace(settings=tried)))
    return tuned_sentence(rows, question)


def test_the_answer_says_what_was_tuned_on_the_tested_seeds() -> None:
    assert tuned({}, a=None, b=None) == ""
    equal = "Tuned on the seeds it is tested on, with 4 settings for every arm, which favours none."
    assert tuned({"tune": {"optimizer.lr": [1, 2, 3, 4]}}, a=4, b=4) == equal
    unequal = tuned({"tune": {"optimizer.lr": [1, 2]}, "tune_seeds": 1}, a=12, b=1)
    assert unequal.startswith("Tuned on 1 of the 5 seeds it is tested on, with 12 settings for a and 1 for b")
    assert tuned({"search": {"trials": 8, "seeds": 2}}, a=8, b=8).startswith("Tuned on 2 of the 5 seeds")
    assert tuned({"search": {"trials": 8}}, a=8, b=8).startswith("Tuned on 1 of the 5 seeds")


def test_looks_at_clauses_about_the_margin_take_nothing_of_the_error_of_the_others() -> None:
    values = {
        "b": {seed: 0.9 + 0.001 * (seed % 3) for seed in range(12)},
        "a": {seed: 0.905 + 0.004 * ((seed * 5) % 7) for seed in range(12)},
        "c": {seed: 0.9 + 0.01 * (seed % 2) for seed in range(12)},
    }

    def first(expect: str) -> Judgement:
        clauses = comparisons(expect, list(values), None)
        return judge(clauses, values, range(12), "max", 0.001, rule=StoppingRule("e-values", 2, 12))[0]

    alone, joined = first("a > b"), first("a > b and b ~ c and c >= b")
    assert alone.at is not None
    assert (joined.at, joined.holm_p, joined.threshold) == (alone.at, alone.holm_p, alone.threshold)
    assert first("a > b and c > b and b > c").threshold > alone.threshold
