"""Figures from papers and other tools beside the arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from blockyard.report.comparison import compare
from blockyard.report.page.document import render
from blockyard.report.render import columns
from blockyard.report.render.markdown import markdown
from blockyard.report.stats.external import external_rows
from blockyard.sweep.spec.question import BadQuestionError, parse
from tests.report.report_runs import MEASURED, norms_sweep

PAPER = {"paper": {"value": 0.92, "n": 5, "sd": 0.004, "source": "Author 2020, table 2"}}
BARE = {"paper": {"value": 0.92, "source": "Author 2020, table 2"}}


def records(folder: Path, external: dict[str, Any], **question: Any) -> dict[str, Any]:
    result = compare(norms_sweep(folder, question={"external": external, **question}), changes=False)
    assert [row.name for row in result.external] == ["paper"]
    return {gap.arm: gap for gap in result.external[0].arms}


def values(arm: str) -> list[float]:
    return [float(value) for value in MEASURED[arm].values()]


def test_a_figure_with_its_spread_is_compared_by_welchs_test(tmp_path: Path) -> None:
    result = records(tmp_path, PAPER)
    for arm, gap in result.items():
        own = values(arm)
        expected = stats.ttest_ind_from_stats(sum(own) / 4, stats.tstd(own), 4, 0.92, 0.004, 5, equal_var=False)
        assert gap.p == pytest.approx(expected.pvalue)
    assert [result[arm].verdict for arm in ("post", "pre", "alibi")] == ["worse", "better", "no difference shown"]
    assert result["pre"].holm_p >= result["pre"].p


def test_a_bare_figure_is_taken_as_exact(tmp_path: Path) -> None:
    result = records(tmp_path, BARE)
    assert result["pre"].p == pytest.approx(stats.ttest_1samp(values("pre"), 0.92).pvalue)
    low, high = result["pre"].interval
    assert low < result["pre"].mean < high


def test_a_sweep_that_stops_when_decided_makes_no_test_of_a_fixed_number(tmp_path: Path) -> None:
    result = records(tmp_path, PAPER, until={"first": 3, "most": 4})
    assert result["pre"].p is None
    assert result["pre"].verdict == "undecided"


def test_tables_say_that_nothing_is_paired(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, question={"external": BARE}), changes=False)
    header, table = columns.externals(result)
    assert "difference (not paired)" in header
    assert table[0][-1] == "Author 2020, table 2 (runs unknown, taken as exact)"
    assert "Author 2020, table 2" in markdown(result)
    assert "Figures from elsewhere" in render(result.as_dict())
    other = compare(norms_sweep(tmp_path / "o", question={"external": BARE}), changes=False, metric="test/loss")
    assert other.external == []


@pytest.mark.parametrize(
    ("external", "message"),
    [
        (["a"], "external: expected a mapping of figures, .* not"),
        ({"a": {"source": "x"}}, "external.a.value: missing; write a number"),
        ({"a": {"value": 1}}, "external.a.source: missing"),
        ({"a": {"value": 1, "source": "x", "sd": 0.1}}, "external.a.sd: expected a standard deviation of n runs"),
        ({"a": {"value": 1, "source": "x", "n": 0}}, "external.a.n: expected a number of runs"),
        ({"a": {"value": 1, "source": "x", "seeds": 3}}, "external.a.seeds: unknown key"),
    ],
)
def test_what_is_no_figure_is_said(external: Any, message: str) -> None:
    content = {"claim": "x", "arms": {"a": ["block=pre_norm"], "b": ["block=post_norm"]}, "external": external}
    with pytest.raises(BadQuestionError, match=message):
        parse(content, name="x")


@pytest.mark.parametrize("noise", [0.0, 1e-14])
def test_an_arm_whose_values_do_not_vary_is_undecided_beside_a_bare_figure(noise: float) -> None:
    """Differences due to rounding alone would give a tiny p-value."""
    own = {"a": {seed: 1.0 + noise * seed for seed in range(5)}}
    (row,) = external_rows(BARE, own, "max", tested=True)
    assert (row.arms[0].p, row.arms[0].verdict) == (None, "undecided")
    (row,) = external_rows(PAPER, own, "max", tested=True)
    assert row.arms[0].verdict == "better"
