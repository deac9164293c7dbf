"""Effects of a grid, against statsmodels' formulas; costs and the Pareto set."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from statsmodels.formula.api import ols
from statsmodels.stats.multitest import multipletests

from blockyard.report.load.costs import median_costs, pareto, ratios
from blockyard.report.load.document import ComparisonDocument
from blockyard.report.render.columns import effect_lines
from blockyard.report.stats.effects import factors_of, grid_effects, is_grid, least_squares, single_factor_effects
from blockyard.report.stats.verdict import compare_arms
from blockyard.runs.costs import costs
from tests.report.report_runs import grid

FACTORS = {"block": ["pre", "post", "parallel"], "rate": ["low", "high"], "heads": ["1", "4"]}


def _grid(seeds: int = 3, noise: float = 0.01) -> tuple[dict[str, dict[int, float]], dict[str, dict[str, str]]]:
    """Values of a 3 x 2 x 2 grid: post is worse, more so at the high rate; each seed has its own level."""
    _, levels = grid(FACTORS)
    draw = np.random.default_rng(0)
    shift = {"pre": 0.0, "post": -0.05, "parallel": 0.01}
    of_seed = draw.normal(0, 0.05, seeds)
    values = {
        arm: {
            seed: 0.9
            + shift[at["block"]]
            + (0.02 if at["rate"] == "high" else 0.0)
            - (0.06 if (at["block"], at["rate"]) == ("post", "high") else 0.0)
            + of_seed[seed]
            + draw.normal(0, noise)
            for seed in range(seeds)
        }
        for arm, at in levels.items()
    }
    return values, levels


def _frame(values: dict[str, dict[int, float]], levels: dict[str, dict[str, str]]) -> pd.DataFrame:
    return pd.DataFrame([{**levels[arm], "seed": s, "y": y} for arm, of in values.items() for s, y in of.items()])


def test_interactions_are_those_of_an_analysis_of_variance() -> None:
    values, levels = _grid()
    result = grid_effects(values, levels)
    assert result is not None
    pairs = list(itertools.combinations(FACTORS, 2))
    formula = " + ".join(["C(seed, Sum)", *(f"C({f}, Sum)" for f in FACTORS)])
    formula += " + " + " + ".join(f"C({a}, Sum):C({b}, Sum)" for a, b in pairs)
    table = sm.stats.anova_lm(ols(f"y ~ {formula}", _frame(values, levels)).fit(), typ=3)
    for one, (a, b) in zip(result.interactions, pairs, strict=True):
        row = table.loc[f"C({a}, Sum):C({b}, Sum)"]
        assert one.factors == [a, b]
        assert pytest.approx(row["F"]) == one.F
        assert one.p == pytest.approx(row["PR(>F)"])
    wanted = multipletests([one.p for one in result.interactions], method="holm")[1]
    assert [one.holm_p for one in result.interactions] == pytest.approx(list(wanted))
    assert [one.holm_p < 0.05 for one in result.interactions] == [True, False, False]
    assert result.formula == "value ~ seed + block + rate + heads + block:rate + block:heads + rate:heads"


def test_main_effects_are_differences_of_marginal_means() -> None:
    values, levels = _grid()
    result = grid_effects(values, levels)
    assert result is not None
    frame = _frame(values, levels)
    pairs = list(itertools.combinations(FACTORS, 2))
    formula = "C(seed, Sum) + " + " + ".join(f"C({f}, Sum)" for f in FACTORS)
    formula += " + " + " + ".join(f"C({a}, Sum):C({b}, Sum)" for a, b in pairs)
    fit = ols(f"y ~ {formula}", frame).fit()
    error, free = np.sqrt(fit.mse_resid), fit.df_resid
    assert [(m.factor, m.level, m.reference) for m in result.main] == [
        ("block", "post", "pre"),
        ("block", "parallel", "pre"),
        ("rate", "high", "low"),
        ("heads", "4", "1"),
    ]
    for one in result.main:
        at = frame.groupby(one.factor)["y"]
        gap = at.mean()[one.level] - at.mean()[one.reference]
        assert one.effect == pytest.approx(gap)
        half = _t(0.975, free) * error * np.sqrt(2 / at.size()[one.level])
        assert one.interval == pytest.approx([gap - half, gap + half])
    assert [one.holm_p < 0.05 for one in result.main] == [True, True, False, False]


def _t(share: float, free: float) -> float:
    from scipy import stats

    return float(stats.t.ppf(share, free))


@pytest.mark.parametrize("inflation", [1.0, 2.5])
@pytest.mark.parametrize(("cells", "columns"), [(5, 3), (24, 4), (200, 20)])
def test_the_tests_of_a_fit_are_those_of_statsmodels(cells: int, columns: int, inflation: float) -> None:
    draw = np.random.default_rng(cells)
    design = draw.normal(size=(cells, columns))
    target = design @ draw.normal(size=columns) + 0.3 * draw.normal(size=cells)
    fit, reference = least_squares(design, target, inflation), sm.OLS(target, design).fit()
    covariance = inflation * reference.cov_params()
    assert fit.free == reference.df_resid
    np.testing.assert_allclose(fit.coefficients, reference.params, rtol=1e-10)

    contrast = draw.normal(size=columns)
    interval, p = fit.t_test(contrast)
    one = reference.t_test(contrast, cov_p=covariance)
    np.testing.assert_allclose(interval, one.conf_int()[0], rtol=1e-10)
    np.testing.assert_allclose(p, one.pvalue, rtol=1e-10)

    tested = [0, columns - 1]
    several = reference.f_test(np.eye(columns)[tested], cov_p=covariance)
    np.testing.assert_allclose(fit.f_test(tested), (several.fvalue, several.pvalue), rtol=1e-10)


def test_the_seed_is_a_block() -> None:
    values, levels = _grid(noise=0.001)
    shuffled = {
        arm: dict(zip(of, np.roll(list(of.values()), place), strict=True))
        for place, (arm, of) in enumerate(values.items())
    }
    blocked, broken = grid_effects(values, levels), grid_effects(shuffled, levels)
    assert blocked is not None
    assert broken is not None
    assert blocked.main[1].p < 1e-6 < 0.05 < broken.main[1].p, "seeds spread far more than arms"


def test_the_means_of_each_pair_of_levels_are_given() -> None:
    values, levels = _grid()
    result = grid_effects(values, levels)
    assert result is not None
    one = result.interactions[0]
    assert one.levels == [FACTORS["block"], FACTORS["rate"]]
    wanted = _frame(values, levels).groupby(["block", "rate"])["y"].mean()
    for row, a in enumerate(FACTORS["block"]):
        for column, b in enumerate(FACTORS["rate"]):
            assert one.cells[row][column] == pytest.approx(wanted[a, b])


def test_a_missing_seed_is_borne_a_missing_pair_of_levels_said() -> None:
    values, levels = _grid()
    arms = list(values)
    del values[arms[0]][1]
    del values[arms[1]][0]
    result = grid_effects(values, levels)
    assert result is not None
    assert result.interactions[0].F is not None
    for arm in arms:
        if levels[arm]["block"] == "post" and levels[arm]["rate"] == "high":
            values[arm] = {}
    result = grid_effects(values, levels)
    assert result is not None
    assert result.interactions == []
    assert "interactions left out: cells are missing" in result.formula
    assert result.formula in effect_lines(
        ComparisonDocument(title="", metric="", direction="max", answer="", effects=result)
    ), "a table says what it leaves out"
    fit = ols("y ~ C(seed, Sum) + C(block, Sum) + C(rate, Sum) + C(heads, Sum)", _frame(values, levels).dropna()).fit()
    post, parallel = fit.params["C(block, Sum)[S.post]"], fit.params["C(block, Sum)[S.parallel]"]
    assert result.main[0].effect == pytest.approx(2 * post + parallel), "pre is minus the sum of the others"
    assert grid_effects({arm: {} for arm in arms}, levels) is None


def test_effects_without_anything_left_over_have_no_p() -> None:
    levels = {f"{a}{b}": {"a": a, "b": b} for a in "xy" for b in "uv"}
    one_seed = grid_effects({arm: {0: float(place)} for place, arm in enumerate(levels)}, levels)
    assert one_seed is not None
    assert one_seed.main[0].effect == pytest.approx(2.0)
    assert one_seed.main[0].p is None
    assert "no degrees of freedom left for tests" in one_seed.formula
    exact = grid_effects({arm: {s: 0.1 * place + s for s in range(3)} for place, arm in enumerate(levels)}, levels)
    assert exact is not None
    assert exact.main[0].p is None, "no noise at all: rounding is no evidence"


def test_false_effects_are_as_rare_as_said() -> None:
    _, levels = grid({"a": ["1", "2"], "b": ["1", "2", "3"]})
    draw = np.random.default_rng(0)
    wrong, sweeps = np.zeros(2), 200
    for _ in range(sweeps):
        block = draw.normal(size=4)
        result = grid_effects({arm: dict(enumerate(block + draw.normal(size=4))) for arm in levels}, levels)
        assert result is not None
        wrong += [any(test.holm_p < 0.05 for test in tests) for tests in (result.main, result.interactions)]
    assert (wrong / sweeps <= 0.08).all(), wrong / sweeps


def test_what_is_a_grid() -> None:
    _, levels = grid({"a": ["1", "2"], "b": ["1", "2"]})
    assert is_grid(levels)
    assert factors_of(levels) == {"a": ["1", "2"], "b": ["1", "2"]}
    assert not is_grid({"x": {"a": "1"}, "y": {"a": "2"}})
    assert not is_grid({"x": {"a": "1", "b": "1"}, "y": {"a": "2"}})
    assert not is_grid({"x": {"a": "1", "b": "1"}, "y": {"a": "1", "b": "1"}})


def test_one_factor_at_a_time_has_simple_effects_only() -> None:
    levels = {"ref": {"a": "1", "b": "1"}, "a2": {"a": "2", "b": "1"}, "b2": {"a": "1", "b": "2"}}
    draw = np.random.default_rng(0)
    values = {arm: dict(enumerate(0.01 * draw.normal(size=4))) for arm in levels}
    judged = compare_arms(values, "ref", "max")
    result = single_factor_effects(judged, levels, "ref")
    assert result is not None
    assert [(one.factor, one.level) for one in result.main] == [("a", "2"), ("b", "2")]
    gap = judged["a2"].difference
    assert gap is not None
    assert result.main[0].effect == gap.mean
    assert result.main[0].holm_p == gap.holm_p
    assert result.interactions == []


# -- costs ---------------------------------------------------------------------------------------------


def test_costs_are_read_from_a_summary_and_the_median_counts() -> None:
    summary: dict[str, Any] = {
        "parameters": {"trainable": 10, "total": 12},
        "flops_per_sample": {"forward": 20, "training": 60},
        "peak_memory": {"bytes": 5, "kind": "cuda allocated"},
        "step_seconds": 0.5,
        "samples_per_second": float("nan"),
        "seconds": None,
    }
    result = costs(summary)
    assert result == {"parameters": 10.0, "flops_per_sample": 60.0, "peak_memory": 5.0, "step_seconds": 0.5}
    runs = [result | {"step_seconds": seconds} for seconds in (0.5, 0.4, 9.0)]
    arm = median_costs(runs)
    assert arm["step_seconds"] == 0.5
    assert arm["seconds"] is None
    other = ratios(arm, median_costs([result | {"parameters": 5.0, "peak_memory": 0.0}]))
    assert (other["parameters"], other["peak_memory"], other["seconds"]) == (2.0, None, None)
    assert median_costs([])["parameters"] is None


@pytest.mark.parametrize("better", ["max", "min"])
@pytest.mark.parametrize("cheaper", ["max", "min"])
def test_the_pareto_set_by_brute_force(better: str, cheaper: str) -> None:
    draw = np.random.default_rng(0)
    points = {str(k): (float(a), float(b)) for k, (a, b) in enumerate(draw.integers(0, 6, (40, 2)))}
    front = pareto(points, better, cheaper)
    signs = np.array([1 if better == "max" else -1, 1 if cheaper == "max" else -1])
    for name, point in points.items():
        gains = [signs * (np.array(other) - point) for other in points.values()]
        beaten = any((gain >= 0).all() and gain.any() for gain in gains)
        assert (name in front) == (not beaten)


def test_an_arm_without_a_figure_is_in_no_pareto_set() -> None:
    assert pareto({"a": (None, 1.0), "b": (0.5, 2.0), "c": (0.9, None)}, "max", "min") == {"b"}
    assert pareto({"a": (0.9, 1.0), "b": (0.9, 1.0), "c": (0.9, 2.0)}, "max", "min") == {"a", "b"}
