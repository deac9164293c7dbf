"""The mean of the last evaluations of a run, from its table of metrics."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from blockyard.atomic_files import write_json
from blockyard.runs.last_evaluations import evaluations, last_means
from blockyard.runs.metric_name import MetricName
from blockyard.sweep.cell.states import final_metrics

VALUES = [2.0, 1.5, 1.25, 1.0, 0.5, 0.75]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with an evaluation at every other row."""
    lines = ["step,train/loss,val/loss"]
    for number, value in enumerate(VALUES):
        lines += [f"{10 * number + 5},3.0,", f"{10 * number + 10},2.5,{value}"]
    (tmp_path / "metrics.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


@pytest.mark.parametrize("name", ["val/loss@last3", "loss@last3"])
def test_the_mean_is_of_the_last_rows_with_an_evaluation(run: Path, name: str) -> None:
    assert last_means(run, [name]) == {"val/loss@last3": pytest.approx(statistics.fmean(VALUES[-3:]))}


def test_what_a_run_has_not_evaluated_often_enough_is_missing(run: Path) -> None:
    assert last_means(run, ["val/loss@last6"]) == {"val/loss@last6": pytest.approx(statistics.fmean(VALUES))}
    assert last_means(run, ["val/loss@last7", "val/accuracy@last1", "test/loss@last2", "val/loss", "val/loss@4x"]) == {}
    assert evaluations(run, MetricName.parse("val/loss@last2")) == VALUES
    assert last_means(run / "nowhere", ["val/loss@last2"]) == {}


def test_a_summary_is_read_with_the_means_that_are_asked_for(run: Path) -> None:
    write_json(run / "summary.json", {"metrics": {"val/loss": 0.5}})
    assert final_metrics(run, ["val/loss", "val/loss@last2"]) == {"val/loss": 0.5, "val/loss@last2": 0.625}
    assert final_metrics(run) == {"val/loss": 0.5}
