"""Comparisons for new test samples: two-way layouts of seeds and samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols
from statsmodels.stats.anova import anova_lm

from blockyard.errors import UserError
from blockyard.report.comparison import compare
from blockyard.report.render.markdown import markdown
from blockyard.report.samples.scores import RunScores, gaps
from blockyard.report.stats.crossed import crossed_difference, mean_squares
from blockyard.sweep.spec.question import BadQuestionError, parse
from tests.report.crossed_predictions import SAMPLES, predicted
from tests.report.report_runs import norms_sweep


def layout(draw: np.random.Generator, seeds: int, samples: int, parts: tuple[float, float, float]) -> np.ndarray:
    """Differences of mean zero with these standard deviations of seeds, samples and the rest."""
    of_seeds, of_samples, of_rest = parts
    rows, columns = draw.normal(size=(seeds, 1)), draw.normal(size=(1, samples))
    return of_seeds * rows + of_samples * columns + of_rest * draw.normal(size=(seeds, samples))


def test_the_mean_squares_are_those_of_an_analysis_of_variance() -> None:
    gaps = layout(np.random.default_rng(0), 4, 7, (1.0, 0.5, 0.3))
    table = pd.DataFrame([(i, j, gaps[i, j]) for i in range(4) for j in range(7)], columns=["seed", "sample", "gap"])
    squares = anova_lm(ols("gap ~ C(seed) + C(sample)", table).fit())["sum_sq"] / [3, 6, 18]
    assert mean_squares(gaps) == pytest.approx(tuple(squares))


def test_over_seeds_is_the_paired_t_test_and_over_samples_that_of_the_samples() -> None:
    gaps = layout(np.random.default_rng(1), 5, 40, (1.0, 0.5, 0.3))
    assert crossed_difference(gaps, "seeds").t_p == pytest.approx(stats.ttest_1samp(gaps.mean(1), 0).pvalue)
    assert crossed_difference(gaps, "samples").t_p == pytest.approx(stats.ttest_1samp(gaps.mean(0), 0).pvalue)


@pytest.mark.parametrize(
    "parts",
    [(0.3, 1.0, 1.0), (1.0, 0.1, 1.0), (0.1, 2.0, 0.2), (0.0, 0.0, 1.0)],
    ids=["samples", "seeds", "samples_alone", "rest"],
)
def test_intervals_over_both_cover_the_mean(parts: tuple[float, float, float]) -> None:
    """Conservative where neither factor varies: the larger mean square then stands."""
    draw = np.random.default_rng(2)
    covered = []
    for _ in range(1_500):
        low, high = crossed_difference(layout(draw, 5, 60, parts), "both").interval or (0, 0)
        covered.append(low <= 0 <= high)
    assert 0.935 <= np.mean(covered) <= 0.995


def test_an_interval_over_seeds_does_not_cover_the_mean_of_new_samples() -> None:
    """What `over` is for: samples that are hard for one arm alone are the same for every seed."""
    draw = np.random.default_rng(3)
    covered = []
    for _ in range(400):
        low, high = crossed_difference(layout(draw, 5, 60, (0.05, 2.0, 0.2)), "seeds").interval or (0, 0)
        covered.append(low <= 0 <= high)
    assert np.mean(covered) < 0.6


def test_differences_that_are_all_equal_have_no_error() -> None:
    """What rounding leaves of their variance was taken as evidence: p = 4e-32."""
    for over in ("seeds", "samples", "both"):
        difference = crossed_difference(np.full((3, 7), 0.1), over)
        assert difference.t_p is None
        assert difference.interval is None


def test_a_variance_over_more_is_never_smaller() -> None:
    draw = np.random.default_rng(4)
    for _ in range(200):
        gaps = layout(draw, 3, 10, (0.0, 0.0, 1.0))
        errors = [crossed_difference(gaps, over).error for over in ("seeds", "samples", "both")]
        assert None not in errors
        assert errors[2] >= max(errors[:2])


RATES = {"post": 0.5, "pre": 0.6, "alibi": 0.5}


def sweep_of(folder: Path, *, kept: int = SAMPLES, **question: Any) -> Any:
    values: dict[str, Any] = {arm: dict.fromkeys(range(4), rate) for arm, rate in RATES.items()}
    plan = norms_sweep(folder, values=values, question=question)
    for cell in plan.cells:
        predicted(plan.path(cell), RATES[cell.variant], kept)
    return plan


def test_a_comparison_holds_for_new_samples(tmp_path: Path) -> None:
    """All seeds agree, so that over seeds nothing varies; six of sixty samples differ."""
    plan = sweep_of(tmp_path, expect="pre > post")
    by_seeds = compare(plan, changes=False, margin=0.01)
    assert any("below the noise of the test set" in line for line in by_seeds.warnings)
    assert by_seeds.arm("pre").words.startswith("Undecided (pre > post): pre against post: +0.1 on every seed")
    result = compare(plan, changes=False, over="samples", margin=0.01)
    assert not any("below the noise of the test set" in line for line in result.warnings)
    gap = result.arm("pre").difference
    assert gap is not None
    gaps = np.zeros(SAMPLES)
    gaps[30:36] = 1
    assert gap.t_p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    assert "for new test samples and these trained models" in result.arm("pre").words
    assert result.expect is not None
    assert result.expect.verdict == "supported"
    assert "hold for new test samples" in markdown(result)


def test_the_sweep_file_says_over_what(tmp_path: Path) -> None:
    result = compare(sweep_of(tmp_path, over="both"), changes=False)
    assert "for new seeds and new test samples" in result.arm("pre").words


def test_scores_that_are_not_the_metric_are_refused(tmp_path: Path) -> None:
    plan = sweep_of(tmp_path)
    with pytest.raises(UserError, match="is not its test/loss"):
        compare(plan, changes=False, over="both", metric="test/loss")
    with pytest.raises(UserError, match="val/accuracy is not a mean over samples"):
        compare(plan, changes=False, over="both", metric="val/accuracy")
    with pytest.raises(UserError, match="expected one of seeds, samples, both"):
        compare(plan, changes=False, over="examples")


def test_runs_without_all_samples_are_refused(tmp_path: Path) -> None:
    plan = sweep_of(tmp_path / "some", kept=40)
    with pytest.raises(UserError, match="kept 40 of 60 test samples"):
        compare(plan, changes=False, over="both")
    with pytest.raises(UserError, match="kept no predictions"):
        compare(norms_sweep(tmp_path / "none"), changes=False, over="both")


@pytest.mark.parametrize("keys", [{"seeds": {"until": "decided"}}, {"success": "test/accuracy >= 0.9"}])
def test_what_is_judged_over_seeds_alone_is_refused(keys: dict[str, Any]) -> None:
    content = {"claim": "x", "arms": {"a": ["block=pre_norm"], "b": ["block=post_norm"]}, "over": "both", **keys}
    with pytest.raises(BadQuestionError, match="judged over seeds"):
        parse(content, name="x")


def test_targets_that_lack_a_value_are_the_same_in_both_arms() -> None:
    target = np.array([[1.0, np.nan], [2.0, 3.0]])
    runs = [{0: RunScores(np.arange(2), target.copy(), np.array([0.5, value]))} for value in (0.25, 0.75)]
    assert gaps(*runs).tolist() == [[0.0, -0.5]]
    runs[1] = {0: RunScores(np.arange(2), target + 1, np.array([0.5, 0.75]))}
    with pytest.raises(UserError, match="tested on different samples"):
        gaps(*runs)
