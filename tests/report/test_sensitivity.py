"""What a sweep says that it can show, before it runs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from blockyard.commands._reader import run
from blockyard.report.stats.sensitivity import SweepDesign, no_room, sensitivity
from blockyard.sweep.spec.expectation import parse
from blockyard.sweep.stopping.boundary import critical_t
from blockyard.sweep.stopping.evidence import log_bayes_factor
from blockyard.sweep.stopping.rule import StoppingRule

NONE: dict[str, dict[int, float]] = {}


def lines(**changes: object) -> list[str]:
    design = {"metric": "test/accuracy", "seeds": 5, "compared": 1, "rule": None, "margin": None, "test_size": None}
    return list(sensitivity(SweepDesign(**{**design, "values": NONE, **changes}), "a"))  # type: ignore[arg-type]


def test_seeds_show_what_a_power_analysis_says() -> None:
    [line] = lines(seeds=6, compared=2)
    effect = TTestPower().solve_power(nobs=6, alpha=0.025, power=0.8)
    assert f"a difference of {effect:.2g} standard deviations" in line
    assert "2 comparisons" in line


def test_seeds_that_stop_when_decided_show_what_reaches_the_threshold() -> None:
    [line] = lines(seeds=8, rule=StoppingRule("e-values", 3, 8))
    effect = float(line.partition("difference of ")[2].split()[0])
    assert log_bayes_factor(8 * (effect + 0.06) ** 2, 8) > math.log(20) > log_bayes_factor(8 * (effect - 0.06) ** 2, 8)


def test_outcomes_of_whole_runs_have_no_t_test_and_six_seeds_at_least() -> None:
    """The power of a t test was promised for 5 seeds, on which an exact test of signs cannot fall below 0.0625."""
    metric = "success(test/accuracy >= 0.15)"
    [line] = lines(metric=metric, test_size=359)
    assert line.startswith("5 seeds cannot decide")
    assert "takes 6 seeds that all go one way, with 1 comparison" in line
    assert stats.binomtest(6, 6).pvalue <= 0.05 < stats.binomtest(5, 5).pvalue
    [line] = lines(metric=metric, seeds=10, compared=3)
    assert "ahead on 7 or more and behind on none, with 3 comparisons" in line
    assert stats.binomtest(7, 7).pvalue * 3 <= 0.05 < stats.binomtest(6, 6).pvalue * 3
    rate = float(line.partition("the other in ")[2].split("%")[0]) / 100
    assert stats.binom.sf(6, 10, 1 - rate - 0.01) < 0.8 < stats.binom.sf(6, 10, 1 - rate + 0.01)
    [line] = lines(metric="steps_to(val/accuracy >= 0.9)", seeds=6)
    assert line.endswith("with 1 comparison")
    assert "6 seeds at most decide a difference" in lines(metric=metric, seeds=6, rule=StoppingRule())[0]


def room(metric: str, values: dict[str, dict[int, float]], margin: float, expect: str, direction: str) -> list[str]:
    design = SweepDesign(metric, 5, 1, rule=None, margin=margin, test_size=None, values=values)
    return no_room(design, parse(expect, ["a", "b"]), direction)


def test_a_margin_needs_room_before_the_end_of_the_metric() -> None:
    low: dict[str, dict[int, float]] = {"b": {0: 0.002, 1: 0.004, 2: 0.003}}
    words = "no arm can be better by 0.01: b is at 0.003 of a metric that ends at 0"
    for metric in ("test/cer", "test/inspect_outliers", "test/written_wer", "test/mse", "test/bits_per_byte"):
        assert room(metric, low, 0.01, "a > b", "min") == [words]
    assert room("test/cer", low, 0.002, "a > b", "min") == []
    assert room("test/cer", low, 0.01, "a >= b", "min") == []
    assert room("test/cer", low, 0.01, "b > a", "min") == []
    assert room("test/cer", {"b": {0: 0.003}}, 0.01, "a > b", "min") == []  # one run shows little
    assert room("test/own_score", low, 0.01, "a > b", "min") == []
    assert room("test/mse", {"b": {0: -1.0, 1: 0.003, 2: 0.003}}, 0.01, "a > b", "min") == []
    high: dict[str, dict[int, float]] = {"b": dict.fromkeys(range(3), 0.995)}
    assert "b is at 0.995 of a metric that ends at 1" in room("test/accuracy", high, 0.02, "a > b", "max")[0]
    assert "between 0 and 1" in room("test/accuracy", NONE, 2.0, "a > b", "max")[0]


def test_seeds_up_to_a_boundary_show_what_crosses_its_end() -> None:
    [line] = lines(seeds=8, rule=StoppingRule("boundary", 3, 8))
    assert f"a difference of {critical_t(8, 0.05, 3, 8) / math.sqrt(8):.2g} standard deviations" in line


def test_finished_cells_give_the_unit() -> None:
    draw = np.random.default_rng(0)
    gaps = draw.normal(0, 0.01, size=5)
    [line] = lines(values={"a": dict.fromkeys(range(5), 0.5), "b": dict(enumerate(0.5 + gaps))})
    effect = TTestPower().solve_power(nobs=5, alpha=0.05, power=0.8)
    assert f"here about {effect * gaps.std(ddof=1):.2g}" in line


def test_the_test_set_has_a_grain() -> None:
    _, line = lines(test_size=359)
    assert "359 test samples: one is 0.0028" in line
    assert f"up to {1.96 * math.sqrt(2 * 0.09 / 359):.2g}" in line
    *_, warning = lines(test_size=359, margin=0.001)
    assert warning == "the margin 0.001 is less than one test sample (0.0028)"
    assert len(lines(test_size=359, metric="test/loss")) == 1


@pytest.mark.full
def test_a_dry_run_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(
        "claim: x\nbase: [experiment=vit_digits, trainer.max_steps=2]\n"
        "arms: {a: [block=pre_norm], b: [block=post_norm]}\n"
        "metric: test/accuracy\nmargin: 0.001\nseeds: {first: 3, most: 6, until: decided}\n"
    )
    assert run("sweep", [str(file), "--dry-run", f"outputs={tmp_path / 'outputs'}"]) == 0
    output = capsys.readouterr().out
    assert "6 seeds at most decide a difference of" in output
    assert "test samples: one is" in output
    assert "is less than one test sample" in output
    assert "if nothing is decided before the last seed, at most" in output
    assert "3 to run, 3 if undecided" in output
