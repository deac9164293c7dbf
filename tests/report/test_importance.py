"""The importance of options: sums of squares of a grid against statsmodels, a search against shares known by theory."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pandas
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

from blockyard.report.arms.importance import importance_answer, importance_rows
from blockyard.report.load.arms import ArmRuns, ComparisonInput
from blockyard.report.load.document import SettingRow
from blockyard.report.stats.importance import MIN_FIT, grid_importance, search_importance

SPACE = {
    "optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True},
    "optimizer.weight_decay": {"low": 0.0, "high": 0.3},
    "schedule": ["cosine", "linear"],
}


def _grid() -> tuple[dict[str, float], dict[str, dict[str, str]]]:
    """Return the means of a grid of 4 x 3 arms, in which the options also act together, and the levels."""
    draw = random.Random(3)
    means, levels = {}, {}
    for a, b in itertools.product(range(4), range(3)):
        name = f"a{a}b{b}"
        levels[name] = {"a": str(a), "b": str(b), "alike": "1"}
        means[name] = 0.3 * a - 0.2 * b + 0.1 * a * b + draw.gauss(0, 0.05)
    return means, levels


def _search(count: int, noise: float, signal: float = 1.0, seed: int = 0) -> tuple[list[dict[str, Any]], list[float]]:
    """Return trials whose results are 3 u + v, where u and v are the places of two options in their ranges."""
    draw = random.Random(1000 * count + seed)
    settings, values = [], []
    for _ in range(count):
        u, v = draw.random(), draw.random()
        setting = {"optimizer.lr": 10 ** (-4 + 2 * u), "optimizer.weight_decay": 0.3 * v}
        settings.append(setting | {"schedule": draw.choice(SPACE["schedule"])})
        values.append(signal * (3 * u + v) + draw.gauss(0, noise))
    return settings, values


def test_shares_of_a_grid_are_those_of_the_analysis_of_variance() -> None:
    means, levels = _grid()
    table = pandas.DataFrame([{**levels[arm], "value": mean} for arm, mean in means.items()])
    squares = sm.stats.anova_lm(smf.ols("value ~ C(a) + C(b)", table).fit())["sum_sq"]
    expected = {"a": squares["C(a)"] / squares.sum(), "b": squares["C(b)"] / squares.sum()}
    shares = grid_importance(means, levels)
    assert shares == pytest.approx(expected, rel=1e-9)
    assert list(shares or ()) == sorted(expected, key=lambda key: -expected[key])


def test_a_grid_with_a_hole_and_one_of_equal_means_have_no_shares() -> None:
    means, levels = _grid()
    assert grid_importance(dict.fromkeys(means, 0.5), levels) is None
    del means["a1b1"]
    assert grid_importance(means, levels) is None


def test_shares_of_a_search_are_near_those_of_theory() -> None:
    """The variance of 3 u + v is nine tenths that of 3 u; the third option changes nothing."""
    result = search_importance(*_search(48, 0.05), SPACE)
    assert result is not None
    assert result.fit > 0.7
    assert result.shares["optimizer.lr"] == pytest.approx(0.9, abs=0.12)
    assert result.shares["optimizer.weight_decay"] == pytest.approx(0.1, abs=0.08)
    assert result.shares["schedule"] < 0.02
    assert next(iter(result.shares)) == "optimizer.lr"


def test_results_that_follow_from_no_option_have_no_shares() -> None:
    result = search_importance(*_search(24, 1.0, signal=0.0), SPACE)
    assert result is not None
    assert result.fit < MIN_FIT
    assert result.shares == {}


@pytest.mark.full
@pytest.mark.parametrize("count", [8, 16, 40])
def test_few_searches_of_noise_have_shares(count: int) -> None:
    results = [search_importance(*_search(count, 1.0, signal=0.0, seed=seed), SPACE) for seed in range(60)]
    with_shares = sum(bool(result and result.shares) for result in results)
    assert with_shares <= 60 / 8


def test_few_trials_and_one_option_have_no_importance() -> None:
    settings, values = _search(7, 0.0)
    assert search_importance(settings, values, SPACE) is None
    settings, values = _search(20, 0.0)
    alike = [setting | {"optimizer.weight_decay": 0.1, "schedule": "cosine"} for setting in settings]
    assert search_importance(alike, values, SPACE) is None


def test_rows_and_sentence_of_a_search() -> None:
    """Trials that were pruned, failed or diverged do not count."""
    settings, values = _search(20, 0.05)
    tried = [
        SettingRow(arm="pre", setting=setting, mean=value, values={}, chosen=False, state="complete")
        for setting, value in zip(settings, values, strict=True)
    ]
    lost = [
        SettingRow(arm="pre", setting=settings[0], mean=mean, values={}, chosen=False, state=state)
        for mean, state in ((9.0, "pruned"), (None, "failed"), (math.nan, "complete"))
    ]
    arms = [ArmRuns("pre"), ArmRuns("post")]
    question = {"search": {"trials": 20, "space": SPACE}}
    data = ComparisonInput("searched", arms, [], question=question, tuning=[*lost, *tried])
    (row,) = importance_rows(data, {"pre": 0.9, "post": 0.8})
    assert (row.arm, row.count) == ("pre", 20)
    (key, share), *_ = row.shares.items()
    assert importance_answer([row]) == (
        f"Of the differences between the trials of an arm, {key} explains most ({100 * share:.0f} % for pre)."
    )
