"""Laws of loss against compute, and what an arm is worth in compute."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from benchmarks.ladder import RUNGS, runs, stops
from blockyard.errors import UserError
from blockyard.report.comparison import Comparison, compare
from blockyard.report.page.document import render
from blockyard.report.render import columns
from blockyard.report.stats import ladder as laws
from blockyard.report.stats.ladder import _MOST, Law, _log, fit, ladder, multiplier
from tests.report.report_runs import sweep

BASE, ARM = Law(1.5, 200.0, 0.2), Law(1.5, 180.0, 0.2)


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "RESAMPLES", 20)


@pytest.mark.parametrize("law", [BASE, Law(0.8, 30.0, 0.12), Law(2.5, 4e3, 0.35)])
def test_constants_are_recovered_from_exact_losses(law: Law) -> None:
    computes = np.logspace(11, 15, 9)
    [recovered] = fit([[(float(c), law.loss(float(c))) for c in computes]])
    assert (recovered.floor, recovered.power) == pytest.approx((law.floor, law.power), rel=0.02)
    assert recovered.loss(1e16) == pytest.approx(law.loss(1e16), rel=1e-3)


def test_a_shared_floor_is_that_of_both_arms() -> None:
    computes = [float(c) for c in np.logspace(11, 15, 7)]
    first, second = fit([[(c, law.loss(c)) for c in computes] for law in (BASE, Law(1.5, 400.0, 0.25))])
    assert first.floor == second.floor == pytest.approx(1.5, rel=0.02)
    assert second.power == pytest.approx(0.25, rel=0.03)


def test_floors_of_their_own_are_those_of_each_arm() -> None:
    """Two laws with other floors: a shared one misses the power of the first."""
    computes = [float(c) for c in np.logspace(11, 15, 7)]
    curves = [[(c, law.loss(c)) for c in computes] for law in (BASE, Law(0.8, 400.0, 0.25))]
    own = fit(curves, floors="own")
    assert [law.floor for law in own] == pytest.approx([1.5, 0.8], rel=0.02)
    assert [law.power for law in own] == pytest.approx([0.2, 0.25], rel=0.03)
    shared = fit(curves)
    assert shared[0].floor == shared[1].floor
    assert abs(shared[0].power - 0.2) > 0.02


def test_the_multiplier_is_the_ratio_of_computes_for_one_loss() -> None:
    assert BASE.compute(BASE.loss(3e13)) == pytest.approx(3e13)
    assert multiplier(ARM, BASE, 3e13) == pytest.approx((200 / 180) ** (1 / 0.2))
    assert math.isinf(multiplier(Law(1.0, 1.0, 0.2), BASE, 3e13))


def test_a_ladder_of_noisy_runs_has_the_multiplier_within_its_interval() -> None:
    base, arm = ladder(runs(np.random.default_rng(0), BASE.loss, ARM.loss, 5, 0.005), "base").arms
    assert base.multiplier is None
    assert arm.interval is not None
    assert arm.interval[0] <= multiplier(ARM, BASE, RUNGS[-1]) <= arm.interval[1]
    assert arm.trend == "stays"
    predicted, measured = arm.held_out
    assert predicted == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("values", [(1.0, 2.0, 4.0), (0.3, -0.2, 0.1, 0.8)])
def test_the_interval_of_every_resample_is_students(values: tuple[float, ...]) -> None:
    """Means of all resamples vary less than means of samples do, by n / (n - 1)."""
    seeds = len(values)
    means = [sum(drawn) / seeds for drawn in itertools.product(values, repeat=seeds)] * 100
    mean = sum(values) / seeds
    expected = stats.t.interval(0.95, seeds - 1, loc=mean, scale=stats.sem(values))
    assert laws._interval(mean, means, seeds) == pytest.approx(expected, rel=1e-3)


def test_a_gap_that_grows_is_seen() -> None:
    """A steeper power: the multiplier is 1 at 1e12 FLOPs and 1.6 at 3e13, and beyond 2 at ten times that."""
    steeper = Law(1.5, 200.0 * 1e12**0.03, 0.23)
    arm = ladder(runs(np.random.default_rng(0), BASE.loss, steeper.loss, 5, 0.001), "base").arms[1]
    assert arm.trend == "grows"
    assert arm.farther is not None
    assert arm.multiplier is not None
    assert arm.farther > arm.multiplier > 1.3


def test_a_law_that_misses_the_largest_rung_tells_no_multiplier() -> None:
    """Above 1e13 FLOPs the arm learns nothing: it is worth 0.67 times its compute there, and a law said 1.2 to 1.6."""
    base, arm = ladder(runs(np.random.default_rng(0), BASE.loss, stops, 5, 0.002), "base").arms
    assert base.withheld is None
    assert arm.withheld is not None
    assert arm.withheld.startswith("the law of the other rungs misses the largest one by -")
    assert (arm.multiplier, arm.interval, arm.farther, arm.trend) == (None, None, None, None)
    low, high = arm.held_out_interval or (0.0, 0.0)
    assert low < arm.held_out[0] / arm.held_out[1] - 1 < high < 0


def test_a_baseline_whose_law_misses_tells_no_multiplier_of_any_arm() -> None:
    base, arm = ladder(runs(np.random.default_rng(0), stops, BASE.loss, 5, 0.002), "base").arms
    assert base.withheld is not None
    assert arm.withheld == f"of base, {base.withheld}"
    assert arm.multiplier is None


def test_a_power_beyond_any_known_law_tells_no_multiplier() -> None:
    """A loss of 1 / N + 1 / D at N D = C is least at N = D = C^1/2."""
    compute = 1e12
    split = [(1 / n + n / compute, n) for n in np.logspace(3, 9, 601)]
    assert min(split)[0] == pytest.approx(2 * compute**-laws.STEEPEST)
    steep = runs(np.random.default_rng(0), Law(0.04, 5.3e7, 0.7).loss, Law(0.04, 3.7e7, 0.7).loss, 5, 0.002)
    base, arm = ladder(steep, "base").arms
    assert base.withheld == "the power 0.70 is beyond any known law (at most 0.5)"
    assert arm.multiplier is None


def test_an_interval_of_more_than_two_orders_tells_no_multiplier() -> None:
    assert laws._wide((0.0, math.log(laws.WIDEST) + 0.01)) == (
        "the interval, 1 to 1e+02 times, spans more than two orders of magnitude"
    )
    assert laws._wide((0.0, math.log(laws.WIDEST) - 0.01)) is None
    assert laws._wide(None) is None
    arm = ladder(runs(np.random.default_rng(3), BASE.loss, ARM.loss, 5, 0.1), "base").arms[1]
    assert (arm.farther, arm.farther_interval) == (None, None)
    assert arm.farther_withheld is not None


def test_what_has_no_law_is_refused() -> None:
    few = {"a": {seed: [(1e12, 2.0), (1e13, 1.8), (1e14, 1.7)] for seed in range(3)}}
    with pytest.raises(UserError, match="a has 3 rungs; a law needs 4 or more"):
        ladder(few, "a")
    rising = {"a": {seed: [(10.0**k, 1.0 + 0.5 * (k % 2)) for k in range(4)] for seed in range(3)}}
    with pytest.raises(UserError, match=r"No law E \+ A C\^-a fits a \(largest error"):
        ladder(rising, "a")
    negative = {"a": {0: [(10.0**k, 1.0 - k) for k in range(4)]}}
    with pytest.raises(UserError, match="not above 0"):
        ladder(negative, "a")


@pytest.mark.full
def test_a_rung_that_is_missed_by_no_more_than_its_runs_explain_has_a_law() -> None:
    """The same means, from runs that agree and from runs that do not."""
    bent = [1.0, 0.98, 0.62, 0.6]  # within 10 % of a law, and not within 5 %
    spread = [-0.3, -0.1, 0.0, 0.1, 0.3]

    def arms(noise: float) -> dict[str, laws.Points]:
        straight = {seed: [(10.0**n, 0.4 + 0.6 * 2.0**-n) for n in range(4)] for seed in range(5)}
        bends = {
            seed: [(10.0**n, loss * (1 + noise * share)) for n, loss in enumerate(bent)]
            for seed, share in enumerate(spread)
        }
        return {"base": straight, "bent": bends}

    assert [one.name for one in ladder(arms(1.0), "base").arms] == ["base", "bent"]
    with pytest.raises(UserError, match="fits bent"):
        ladder(arms(0.01), "base")


def test_a_law_that_hardly_falls_needs_endless_compute() -> None:
    flat = laws.Law(0.1, 1.0, 1e-3)
    assert flat.compute(0.2) == math.inf
    assert flat.compute(2.0) > 0
    assert flat.compute(flat.loss(1e12)) == pytest.approx(1e12)


@pytest.mark.full
def test_a_multiplier_that_rounds_to_zero_is_a_small_one() -> None:
    """A nearly flat baseline at more than 4e19 FLOPs ended the report with an error of math.log."""
    assert multiplier(Law(2, 0.05, 1e-3), Law(2, 0.01, 1e-3), 1e20) == 0.0
    assert _log(0.0) == -_MOST


def test_an_arm_that_no_law_fits_does_not_change_the_others() -> None:
    arms = runs(np.random.default_rng(0), BASE.loss, ARM.loss, 5, 0.005)
    wild = {seed: [(c, 3.0 - 0.6 * (k % 2)) for k, (c, _) in enumerate(curve)] for seed, curve in arms["base"].items()}
    with_it = ladder({**arms, "wild": wild}, "base")
    alone = ladder(arms, "base")
    assert with_it.arms == alone.arms
    assert alone.unfitted == []
    (misfit,) = with_it.unfitted
    assert misfit.name == "wild"
    assert misfit.worst > laws.BAD_FIT
    assert misfit.rungs == tuple(wild[0])
    with pytest.raises(UserError, match="fits wild"):
        ladder({**arms, "wild": wild}, "wild")
    with pytest.raises(UserError, match="fits wild"):
        ladder({"base": arms["base"], "wild": wild}, "base")


# The accuracies of sizes; losses are 1.21 less, and follow 0.2 + A C^-0.25 with compute as the square of the size.
SIZES = {"16": 0.01, "32": 0.3029, "64": 0.51, "128": 0.6564}


def noise(rung: str, seed: int) -> float:
    return 0.003 * ((3 * seed + len(rung) + 2 * list(SIZES).index(rung)) % 5 - 2)


def sizes(folder: Path, **more: Any) -> Comparison:
    """A grid of two blocks and four widths, whose losses fall with the width."""
    arms, levels, values, summaries = {}, {}, {}, {}
    for block, (dim, gain) in itertools.product(("pre_norm", "post_norm"), SIZES.items()):
        name = f"{block}-{dim}"
        arms[name] = [f"block={block}", f"model.dim={dim}"]
        levels[name] = {"block": block, "size": dim}
        more_of_it = 0.03 if block == "pre_norm" else 0.0
        values[name] = {seed: gain + noise(dim, seed) + more_of_it for seed in range(4)}
        summaries[name] = {"samples": 1000, "flops_per_sample": {"forward": 1, "training": int(dim) ** 2 * 1000}}
    plan = sweep(
        folder, arms, values, question={"kind": "grid", "metric": "test/loss"}, levels=levels, summaries=summaries
    )
    plan.facts["metric"] = {"name": "test/loss", "validation": "val/loss", "direction": "min"}
    plan.save()
    return compare(plan, changes=False, baseline="post_norm-16", **more)


@pytest.mark.full
def test_a_grid_of_sizes_has_a_ladder(tmp_path: Path) -> None:
    result = sizes(tmp_path, ladder="size")
    assert result.ladder is not None
    assert result.ladder.baseline == "post_norm"
    pre, post = result.ladder.arms
    assert (pre.name, post.name) == ("pre_norm", "post_norm")
    assert pre.compute == [1000.0 * 1000 * int(dim) ** 2 for dim in SIZES]
    assert pre.multiplier is not None
    assert pre.multiplier > 1
    header, rows = columns.ladders(result)
    assert rows[1][:2] == ["post_norm", "baseline"]
    assert "at 10x (extrapolated)" in header
    assert "Ladder of sizes" in render(result.as_dict())
    assert sizes(tmp_path / "without").ladder is None


def climbed(
    folder: Path,
    *,
    gains: dict[str, float] = SIZES,
    arms: tuple[str, ...] = ("pre", "post"),
    stalled: str | None = None,
    **question: Any,
) -> Comparison:
    """A sweep with `ladder`: its arms over four rungs, as its plan has them. stalled: learns less on the last one"""
    overrides, levels, values, summaries = {}, {}, {}, {}
    for arm, (rung, gain) in itertools.product(arms, gains.items()):
        name = f"{arm}-{rung}"
        overrides[name] = [f"block={arm}_norm", f"model.dim={rung}"]
        levels[name] = {"arm": arm, "rung": rung}
        values[name] = {seed: gain + noise(rung, seed) for seed in range(4)}
        if arm == stalled and rung == "128":
            values[name] = {seed: value - 0.05 for seed, value in values[name].items()}
        if arm == "branch":  # falls, and rises again at every other rung
            values[name] = {seed: value + 0.5 * (rung in ("32", "128")) for seed, value in values[name].items()}
        if arm == "pre":
            values[name] = {seed: value + 0.03 + 0.001 * (seed == 2) for seed, value in values[name].items()}
        summaries[name] = {"samples": 10 * int(rung), "flops_per_sample": {"forward": 1, "training": int(rung) * 1000}}
    terms = {"ladder": {"flops": [float(rung) for rung in gains]}, "metric": "test/loss", "baseline": "post-128"}
    plan = sweep(folder, overrides, values, question={**terms, **question}, levels=levels, summaries=summaries)
    plan.facts["metric"] = {"name": "test/loss", "validation": "val/loss", "direction": "min"}
    plan.save()
    return compare(plan, changes=False)


def test_a_sweep_with_rungs_has_its_ladder_without_an_option(tmp_path: Path) -> None:
    result = climbed(tmp_path)
    assert result.ladder is not None
    assert (result.ladder.factor, result.ladder.baseline) == ("rung", "post")
    pre = next(arm for arm in result.ladder.arms if arm.name == "pre")
    assert f"pre is worth {pre.multiplier:.3g} times (" in result.answer
    assert "At the largest rung (1.64e+08 FLOPs), in the compute of post:" in result.answer
    assert "Extrapolated to 10 times that: pre" in result.answer
    assert "Ladder of sizes" in render(result.as_dict())


@pytest.mark.full
def test_an_arm_without_a_law_stands_in_the_table_and_the_answer(tmp_path: Path) -> None:
    result = climbed(tmp_path, arms=("pre", "post", "branch"))
    assert result.ladder is not None
    assert [arm.name for arm in result.ladder.arms] == ["pre", "post"]
    (misfit,) = result.ladder.unfitted
    assert misfit.name == "branch"
    assert misfit.compute == result.ladder.arms[0].compute
    assert misfit.loss[1] < misfit.loss[2] < misfit.loss[0]
    assert " No law E + A C^-a fits branch (largest error " in result.answer
    assert columns.ladders(result)[1][-1][:2] == ["branch", "no law fits"]


@pytest.mark.full
def test_the_answer_says_how_often_a_rung_orders_arms_as_the_largest_does(tmp_path: Path) -> None:
    """pre is better at every rung, and at the largest one worse by 0.02: one pair, which no rung orders alike."""
    same = climbed(tmp_path)
    assert same.decisions is not None
    counted = [(row.metric, row.rung, row.kept, row.pairs) for row in same.decisions]
    assert counted[:3] == [("test/loss", rung, 1, 1) for rung in ("16", "32", "64")]
    assert ("test/accuracy", "16", 1, 1) in counted
    assert "sign of their difference at 128: 1 of 1 (100 %) at 16, 1 of 1 (100 %) at 32, 1 of 1" in same.answer
    turned = climbed(tmp_path / "turned", stalled="pre")
    assert "at 128: 0 of 1 (0 %) at 16, 0 of 1 (0 %) at 32, 0 of 1 (0 %) at 64." in turned.answer
    assert columns.decisions(turned)[1][0] == ["test/loss", "16", "128", "0 of 1", "0 of 1"]
    assert '"decided_kept":0' in render(turned.as_dict()).replace(" ", "")


@pytest.mark.full
def test_a_ladder_without_a_law_has_decisions(tmp_path: Path) -> None:
    result = climbed(tmp_path, gains={"16": 0.05, "32": 0.6, "64": 0.1, "128": 0.7})
    assert result.ladder is None
    assert result.decisions is not None
    assert "Pairs of arms with the sign" in result.answer


@pytest.mark.full
def test_a_withheld_multiplier_is_told_with_its_reason(tmp_path: Path) -> None:
    """In the answer, the tables and the page. The largest rung of one arm is 0.05 worse than its law."""
    result = climbed(tmp_path, stalled="pre")
    assert result.ladder is not None
    pre = next(arm for arm in result.ladder.arms if arm.name == "pre")
    assert pre.multiplier is None
    reason = "the law of the other rungs misses the largest one by"
    assert f"No compute multiplier is given for pre ({reason}" in result.answer
    assert "is worth" not in result.answer
    assert "Extrapolated" not in result.answer
    row = next(cells for cells in columns.ladders(result)[1] if cells[0] == "pre")
    assert (row[1], row[3]) == ("withheld", "withheld")
    assert reason in render(result.as_dict())
    result = climbed(tmp_path / "baseline", stalled="post")
    assert f"No compute multipliers are given: of post, the baseline, {reason}" in result.answer


@pytest.mark.full
def test_a_ladder_with_floors_of_their_own(tmp_path: Path) -> None:
    shared = climbed(tmp_path).ladder
    own = climbed(tmp_path / "own", ladder={"flops": [16.0, 32.0, 64.0, 128.0], "floors": "own"})
    assert shared is not None
    assert own.ladder is not None
    assert (shared.floors, own.ladder.floors) == ("shared", "own")
    assert len({arm.floor for arm in shared.arms}) == 1
    assert len({arm.floor for arm in own.ladder.arms}) == 2
    assert '"floors":"own"' in render(own.as_dict()).replace(" ", "")
    grid = sizes(tmp_path / "grid", ladder="size", floors="own").ladder
    assert grid is not None
    assert grid.floors == "own"


@pytest.mark.full
def test_arms_of_a_ladder_are_compared_with_the_baseline_at_their_rung(tmp_path: Path) -> None:
    result = climbed(tmp_path)
    for rung in SIZES:
        own, base = result.arm(f"pre-{rung}"), result.arm(f"post-{rung}")
        assert own.against == f"post-{rung}"
        assert own.difference is not None
        assert own.difference.mean == pytest.approx(own.mean - base.mean)  # type: ignore[operator]
        assert own.cost_ratio["flops_per_sample"] == 1.0
        assert (base.verdict, base.difference) == ("baseline", None)
    assert "against post at the same rung: pre-16" in result.answer
    assert any("difference: to post at the same rung" in note for note in columns.notes(result))
    assert columns.cost_notes(result)[0] == "(x): times the cost of post at the same rung"
    assert result.effects is None
    assert not any("different numbers of samples" in warning for warning in result.warnings)


@pytest.mark.full
def test_a_ladder_of_one_arm_is_its_law(tmp_path: Path) -> None:
    result = climbed(tmp_path, arms=("post",))
    assert result.ladder is not None
    (arm,) = result.ladder.arms
    assert "There is one arm only, post: nothing to compare it with." in result.answer
    assert f"The loss of post follows {arm.floor:.3g} + {arm.scale:.3g} / C^{arm.power:.3g}" in result.answer


@pytest.mark.full
def test_arms_of_one_rung_with_other_budgets_are_told(tmp_path: Path) -> None:
    plan_of_one = climbed(tmp_path, ladder={"flops": [16.0]})
    assert not any("different numbers" in warning for warning in plan_of_one.warnings)
    grid = climbed(tmp_path / "grid", ladder=None)
    assert any("different numbers of samples" in warning for warning in grid.warnings)


@pytest.mark.full
def test_a_ladder_without_a_law_says_so_and_compares_the_rest(tmp_path: Path) -> None:
    result = climbed(tmp_path, gains={"16": 0.05, "32": 0.6, "64": 0.1, "128": 0.7})
    assert result.ladder is None
    assert any("ladder: No law E + A C^-a fits" in warning for warning in result.warnings)
    assert "pre-16" in result.answer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ladder": "sizes"}, "no factor of a grid; did you mean size"),
        ({"ladder": "size", "metric": "test/accuracy"}, "test/accuracy is not a loss"),
        ({"ladder": "size", "floors": "owns"}, "floors=owns: expected shared or own; did you mean own?"),
        ({"floors": "own"}, "floors=own: no laws are fitted here"),
    ],
)
def test_what_is_no_ladder_is_said(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sizes(tmp_path, **arguments)
