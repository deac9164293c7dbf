"""Sweeps that stop when they are decided: the evidence, the decisions, and which cells are due."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ville
from scipy import integrate, stats

from blockyard.report.comparison import compare
from blockyard.report.stats.sequential import Terms, evidence_row
from blockyard.sweep.cells import Arm, Cell, Variant
from blockyard.sweep.execution.runner import run_plan
from blockyard.sweep.executor import build
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.stopping import due, evidence
from blockyard.sweep.stopping.decisions import EARLIER, ArmComparison, comparisons, judge
from blockyard.sweep.stopping.due import Standing, seeded_arms, standing
from blockyard.sweep.stopping.forecast import seeds_to_decide
from tests.sweep.sweep_runs import at_work, planner, wait_for
from tests.sweep.sweep_runs import plan as tiny_plan

# The evidence.


@pytest.mark.parametrize(("t", "n"), [(0.0, 2), (1.3, 3), (-2.5, 5), (4.0, 5), (9.0, 12)])
def test_the_e_value_is_the_bayes_factor_by_integration(t: float, n: int) -> None:
    """The noncentral t density averaged over effects ~ N(0, g), over the central one."""
    sd = math.sqrt(evidence.PRIOR)
    top, _ = integrate.quad(
        lambda d: stats.nct.pdf(t, n - 1, math.sqrt(n) * d) * stats.norm.pdf(d, 0, sd), -10 * sd, 10 * sd, limit=400
    )
    assert evidence.log_bayes_factor(t**2, n) == pytest.approx(math.log(top / stats.t.pdf(t, n - 1)), abs=1e-6)


def test_e_values_of_differences_are_those_of_their_t() -> None:
    gaps = [0.3, -0.1, 0.4, 0.2, 0.25]
    for n in range(2, 6):
        t = stats.ttest_1samp(gaps[:n], 0.0).statistic
        assert evidence.log_e_values(gaps, 1.0)[n - 1] == pytest.approx(evidence.log_bayes_factor(t**2, n))
    assert evidence.log_e_values(gaps, 1.0)[0] == 0.0


def test_the_confidence_sequence_holds_the_means_that_are_not_rejected() -> None:
    gaps = list(np.random.default_rng(0).normal(0.5, 1.0, size=9))
    low, high = evidence.confidence_sequence(gaps[:5], 1.0)[-1]
    ends = [evidence._interval(gaps[:n], 1.0, 0.05) for n in range(1, 6)]
    assert (low, high) == (max(end[0] for end in ends), min(end[1] for end in ends))
    for mean in ends[-1]:
        assert evidence.log_e_values(gaps[:5], 1.0, null=mean)[-1] == pytest.approx(math.log(20))


def test_equal_differences_are_judged_by_their_signs() -> None:
    """Seven equal signs decide, six do not; equal values decide for no difference in the same way."""
    same = evidence.log_e_values([0.5] * 7, 1.0)
    assert same[5] < math.log(20) <= same[6] < evidence.log_bayes_factor(math.inf, 7)
    assert evidence.confidence_sequence([0.5] * 7, 1.0)[-1] == evidence.UNKNOWN
    assert evidence.log_equal_e([0.0] * 7, 1.0) == same[6]
    assert evidence.log_equal_e([0.0, 0.1], 1.0) == 0.0
    assert evidence.log_sign_e([0.1, -0.2, 0.0], 1.0) == pytest.approx(math.log(4 * 0.125))  # B(1.5, 1.5) / B(.5, .5)


def test_the_betting_interval_is_that_of_ville() -> None:
    gaps = np.random.default_rng(1).beta(5, 2, size=60) * 0.4 - 0.2
    ours = evidence.betting_interval(list(gaps), (-1.0, 1.0), cells=4_000)
    theirs = ville.BettingCS(bounds=(-1.0, 1.0), alpha=0.05, grid=4_001).fit(gaps).interval()
    assert ours == pytest.approx(theirs, abs=2e-3)


def test_a_mean_outside_the_bounds_is_not_covered() -> None:
    """And a true one is, at every number of seeds."""
    draw = np.random.default_rng(2)
    covered = 0
    for _ in range(60):
        gaps = list(draw.exponential(0.1, size=40).clip(0, 1) - 0.1)
        pairs = [evidence.betting_interval(gaps[:n], (-1.0, 1.0), cells=200) for n in (10, 20, 30, 40)]
        covered += all(pair is not None and pair[0] <= 0.0 <= pair[1] for pair in pairs)
        assert pairs[-1] is not None
        assert pairs[-1][1] < 0.5
        assert pairs[-1][0] > -0.5
    assert covered >= 54


def test_seeds_to_decide_are_those_at_which_an_effect_reaches_the_threshold() -> None:
    n = seeds_to_decide(EARLIER, 1.0, 0.05)
    assert n is not None
    assert evidence.log_bayes_factor(n, n) >= math.log(20) > evidence.log_bayes_factor(n - 1, n - 1)
    assert seeds_to_decide(EARLIER, 0.01, 0.05) is None


# The decisions.

AGAINST = [ArmComparison("a", (("a",), ("base",))), ArmComparison("b", (("b",), ("base",)))]


def values(**gaps: list[float]) -> dict[str, dict[int, float]]:
    """Arms that differ from a baseline of zeros by these gaps."""
    most = max(map(len, gaps.values()))
    return {"base": dict.fromkeys(range(most), 0.0), **{arm: dict(enumerate(own)) for arm, own in gaps.items()}}


def outcomes(values: dict[str, dict[int, float]], *, margin: float | None = None, direction: str = "max") -> list[Any]:
    clauses = [one for one in AGAINST if one.name in values]
    return [(one.outcome, one.at) for one in judge(clauses, values, range(20), direction, margin)]


CLEAR = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0]
NONE = [0.02, -0.01, 0.01, -0.02, 0.0, 0.01, -0.015, 0.005]


def test_a_clear_difference_is_decided_and_keeps_its_seed() -> None:
    assert outcomes(values(a=CLEAR)) == [("better", 4)]
    assert outcomes(values(a=[*CLEAR, -9.0, 12.0])) == [("better", 4)]
    assert outcomes(values(a=CLEAR), direction="min") == [("worse", 4)]
    assert outcomes(values(a=CLEAR[:3])) == [(None, None)]


def test_two_comparisons_share_the_error_rate() -> None:
    """Holm: the stronger of two needs e = 40, then the other 20."""
    one, two = [0.9, 1.1, 0.4, 1.0, 0.8], [0.9, 1.1, 0.4, 1.0, 0.8]
    alone = judge(AGAINST[:1], values(a=one), range(20), "max", None)[0]
    both = judge(AGAINST, values(a=one, b=two), range(20), "max", None)
    assert both[0].holm_p == pytest.approx(2 * alone.p)
    open_one = judge(AGAINST, values(a=CLEAR, b=NONE), range(20), "max", None)
    assert open_one[0].outcome == "better"
    assert open_one[1].threshold == pytest.approx(math.log(20))


def test_no_difference_that_matters_needs_a_margin() -> None:
    assert outcomes(values(a=NONE)) == [(None, None)]
    [(outcome, at)] = outcomes(values(a=NONE), margin=0.1)
    assert outcome == "equivalent"
    assert at is not None
    assert 3 <= at < len(NONE)
    assert outcomes(values(a=[0.0] * 6), margin=0.1) == [(None, None)]
    assert outcomes(values(a=[0.0] * 7), margin=0.1) == [("same", 7)]


def test_what_is_decided_first_stays() -> None:
    """More seeds, which another comparison needs, show that the difference is smaller than the margin."""
    gaps = [0.00638, 0.0056, 0.00792, 0.00631, 0.00439, 0.00708, 0.0058, 0.0066]
    for n in range(4, len(gaps) + 1):
        assert outcomes(values(a=gaps[:n]), margin=0.01) == [("better", 4)]
    assert outcomes(values(a=[gap - 0.005 for gap in gaps]), margin=0.01)[0][0] == "equivalent"


def margin_of(sign: str, gaps: list[float], margin: float) -> tuple[str | None, str | None]:
    """How a clause `a SIGN base` ends, and its verdict."""
    (one,) = judge([ArmComparison("a", (("a",), ("base",)), sign)], values(a=gaps), range(20), "max", margin)
    return one.outcome, one.verdict


@pytest.mark.parametrize(
    ("sign", "shift", "expected"),
    [
        ("~", 1.0, (None, None)),  # surely not zero, and surely less than the margin of 1.5 only with more seeds
        ("~", 2.5, ("different", "contradicted")),
        ("~", -2.5, ("different", "contradicted")),
        (">=", -1.0, (None, None)),
        (">=", -2.5, ("worse by a margin", "contradicted")),
        (">=", 1.0, ("not worse", "supported")),
        (">", 2.5, ("better", "supported")),
        (">", -2.5, ("worse", "contradicted")),
    ],
)
def test_a_clause_about_a_margin_is_held_against_the_margin(sign: str, shift: float, expected: object) -> None:
    gaps = [shift + noise for noise in (0.1, -0.1, 0.15, -0.12, 0.08, -0.11, 0.05, -0.05)]
    assert judge([ArmComparison("a", (("a",), ("base",)))], values(a=gaps), range(20), "max", None)[0].outcome in (
        "better",
        "worse",
    )
    margin = 1.05 if expected == (None, None) else 1.5
    assert margin_of(sign, gaps, margin) == expected


def test_what_supports_the_opposite_with_a_margin_contradicts_a_claim_of_better() -> None:
    """Where b is not worse than a by a margin, a is not better than b by one; both after the same seeds."""
    draw = np.random.default_rng(1)
    ended = set()
    for shift in (-0.5, 0.0, 0.3):
        gaps = list(draw.normal(shift, 0.3, size=20))
        own = {"base": dict.fromkeys(range(20), 0.0), "a": dict(enumerate(gaps))}
        better = ArmComparison("a > base", (("a",), ("base",)), ">")
        opposite = ArmComparison("base >= a", (("base",), ("a",)), ">=")
        (one,), (other,) = (judge([clause], own, range(20), "max", 0.6) for clause in (better, opposite))
        ended.add(one.outcome)
        if one.outcome in ("not better", "equivalent"):
            assert (one.verdict, other.verdict) == ("contradicted", "supported")
            assert one.at == other.at
    assert "not better" in ended
    assert judge([better], own, range(20), "max", None)[0].outcome != "not better"  # without a margin it is not offered


def test_a_true_claim_about_a_margin_is_seldom_contradicted() -> None:
    """Of a difference of two thirds of the margin; one from zero alone contradicted nine of ten such claims."""
    draw = np.random.default_rng(0)
    for sign, mean in (("~", 1.0), (">=", -1.0), (">", 1.5)):
        ends = [margin_of(sign, list(draw.normal(mean, 1.0, size=20)), 1.5)[1] for _ in range(150)]
        assert ends.count("contradicted") <= 10  # of 7.5 at 5 %


@pytest.mark.parametrize(
    ("sign", "gaps", "verdict"),
    [
        (">", CLEAR, "supported"),
        (">", [-gap for gap in CLEAR], "contradicted"),
        (">", NONE, "contradicted"),
        ("~", NONE, "supported"),
        ("~", CLEAR, "contradicted"),
        (">=", NONE, "supported"),
        (">=", CLEAR, "supported"),
        (">=", [-gap for gap in CLEAR], "contradicted"),
        (">", NONE[:3], None),
    ],
)
def test_what_a_clause_says(sign: str, gaps: list[float], verdict: str | None) -> None:
    clauses = comparisons(f"a {sign} base", ["a", "base"], None)
    [one] = judge(clauses, values(a=gaps), range(20), "max", 0.1)
    assert one.verdict == verdict


def test_a_contrast_needs_all_four_arms() -> None:
    clauses = comparisons("(a - b) > (c - d)", list("abcd"), None)
    own = {"a": CLEAR, "b": [0.0] * 6, "c": [0.1 * gap for gap in CLEAR], "d": [0.0] * 5}
    [one] = judge(clauses, {arm: dict(enumerate(gaps)) for arm, gaps in own.items()}, range(20), "max", None)
    assert one.comparison.arms == ("a", "d", "b", "c")
    assert one.gaps == pytest.approx([0.9 * gap for gap in CLEAR[:5]])
    assert one.verdict == "supported"


# Which cells are due.


def frozen(arms: str = "abc", most: int = 8, first: int = 3, **question: Any) -> SweepPlan:
    """Arms without a setting; run names tell everything."""
    return SweepPlan(
        name="x",
        question={
            "baseline": "a",
            "seeds": list(range(most)),
            "until": {"first": first, "most": most},
            **question,  # type: ignore[typeddict-item]
        },
        outputs="/nowhere",
        arms=tuple(Arm(name) for name in arms),
        variants={name: Variant(name, name, {}, {}) for name in arms},
        cells=tuple(Cell(name, seed, f"{name}/s{seed}") for name in arms for seed in range(most)),
        facts={"metric": {"name": "test/m", "validation": "val/m", "direction": "max"}},
    )


GAPS = {"a": [0.0] * 8, "b": [*CLEAR, 1.0, 1.0], "c": [0.5, -0.4, 0.6, -0.5, 0.4, -0.6, 0.5, -0.4]}


def done(gaps: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {f"{arm}/s{seed}": {"test/m": value} for arm, own in gaps.items() for seed, value in enumerate(own)}


def play(plan: SweepPlan, gaps: dict[str, list[float]], order: random.Random, broken: tuple[str, ...] = ()) -> Standing:
    """Run the cells that are due in any order, with these values, until none is left."""
    there, ended = {}, set()
    full = done(gaps)
    while True:
        now = standing(plan, there, ended)
        left = [cell.run for cell in now.due if cell.run not in there and cell.run not in ended]
        if not left:
            return now
        run = order.choice(left)
        if run in broken:
            ended.add(run)
        else:
            there[run] = full[run]


def seeds_of(now: Standing) -> dict[str, int]:
    return {arm: len(list(cells)) for arm, cells in itertools.groupby(now.due, key=lambda cell: cell.variant)}


def test_every_arm_gets_the_first_seeds() -> None:
    now = standing(frozen(), {})
    assert seeds_of(now) == {"a": 3, "b": 3, "c": 3}
    assert now.reason == "open"


def test_decided_arms_get_no_more_seeds_and_the_baseline_goes_on() -> None:
    now = play(frozen(), GAPS, random.Random(0))
    assert seeds_of(now) == {"a": 8, "b": 4, "c": 8}
    assert now.reason == "most seeds"
    assert [one.outcome for one in now.judgements] == ["better", None]


def test_the_order_in_which_cells_end_changes_nothing() -> None:
    ends = {tuple(cell.run for cell in play(frozen(), GAPS, random.Random(seed)).due) for seed in range(20)}
    assert len(ends) == 1


def test_the_next_seed_waits_for_all_cells_of_this_one() -> None:
    there = done({arm: own[:3] for arm, own in GAPS.items()})
    del there["c/s2"]
    assert seeds_of(standing(frozen(), there)) == {"a": 3, "b": 3, "c": 3}
    assert seeds_of(standing(frozen(), there, ended=["c/s2"])) == {"a": 4, "b": 4, "c": 4}


def test_all_decided_stops() -> None:
    now = play(frozen(margin=0.1), GAPS | {"c": NONE}, random.Random(0))
    assert now.reason == "decided"
    assert [one.outcome for one in now.judgements] == ["better", "equivalent"]


def test_an_arm_that_no_clause_names_gets_three_seeds() -> None:
    until = {"first": 5, "most": 8, "by": "boundary"}
    now = play(frozen(expect="b > a", until=until), GAPS, random.Random(0))
    assert seeds_of(now) == {"a": 5, "b": 5, "c": 3}
    assert now.reason == "decided"
    assert seeded_arms(frozen(expect="b > a", until=until)) == {"a", "b"}
    earlier = play(frozen(expect="b > a", first=5), GAPS, random.Random(0))
    assert seeds_of(earlier) == {"a": 5, "b": 5, "c": 5}


EQUAL = [0.5, -0.4, 0.6, -0.5, 0.4, -0.6, 0.5, -0.4] * 3  # a mean of about zero, and no margin


@pytest.mark.parametrize("by", ["boundary", "e-values"])
def test_what_would_take_more_than_the_limit_is_given_up(by: str) -> None:
    until = {"first": 4, "most": 20, "by": by}
    gaps = {"a": [0.0] * 24, "b": [*CLEAR * 4], "c": EQUAL}
    ends = {}
    for seed in range(6):
        now = play(frozen(most=20, until=until), gaps, random.Random(seed))
        ends[tuple(cell.run for cell in now.due)] = now
    (now,) = ends.values()  # whatever the order in which cells ended
    assert now.reason == "beyond the limit"
    assert [one.outcome for one in now.judgements] == ["better", None]
    assert 8 <= seeds_of(now)["c"] < 20
    with_margin = play(frozen(most=20, until=until, margin=0.8), gaps, random.Random(0))
    assert with_margin.judgements[1].outcome == "equivalent"  # so it is not given up where equality is an answer


def test_a_boundary_decides_a_small_effect_that_e_values_leave_open() -> None:
    draw = np.random.default_rng(5)
    decided = dict.fromkeys(("boundary", "e-values"), 0)
    for _ in range(60):
        gaps = {"a": [0.0] * 20, "b": draw.normal(0.5, 1.0, size=20).tolist()}
        for by in decided:
            now = play(frozen("ab", most=20, until={"first": 3, "most": 20, "by": by}), gaps, random.Random(0))
            decided[by] += now.reason == "decided"
    assert decided["boundary"] >= 24  # of 60; 52 % in the long run, without giving up
    assert decided["boundary"] >= decided["e-values"] + 10  # 22 %


def test_only_the_arms_of_open_clauses_go_on() -> None:
    now = play(frozen(expect="b > a"), GAPS, random.Random(0))
    assert seeds_of(now) == {"a": 4, "b": 4, "c": 3}
    assert now.reason == "decided"


@pytest.mark.parametrize(
    ("limit", "cells", "reason"),
    [(15, 14, "budget"), (14, 14, "budget"), (13, 12, "budget"), (40, 20, "most seeds")],
)
def test_the_budget_stops_before_it_is_exceeded(limit: float, cells: int, reason: str) -> None:
    """3 x 3 cells, one more seed of three arms, then of the two that are open: 9, 12, 14, 16, 18, 20."""
    now = play(frozen(budget={"cells": limit}), GAPS, random.Random(0))
    assert (len(now.due), now.reason, now.spent) == (cells, reason, cells)


def test_an_arm_without_any_value_gets_no_more_seeds() -> None:
    now = play(frozen(), GAPS, random.Random(0), broken=("c/s0", "c/s1", "c/s2"))
    assert seeds_of(now) == {"a": 4, "b": 4, "c": 3}
    assert now.reason == "failed"


def test_a_comparison_without_a_common_seed_has_a_row_of_evidence() -> None:
    """The page of a sweep that has just begun."""
    (one,) = judge(comparisons("b > a", "ab", None), {"a": {0: 1.0}}, [0, 1], "max", 0.1)
    (look,) = evidence_row(standing(frozen("ab"), {}), [one], Terms("max", 0.1, [0, 1]), {"expect": "b > a"}).looks
    assert (look.seeds, look.low, look.high) == ([], [], [])


def test_hours_are_those_of_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status has the last attempt of a run that was killed and resumed, its summary the training of all."""
    monkeypatch.setattr(due, "duration", lambda status: 600.0)
    monkeypatch.setattr(due, "read_json", lambda path: {"seconds": 7200.0})
    now = play(frozen(budget={"hours": 18}), GAPS, random.Random(0))
    assert (len(now.due), now.reason, now.spent) == (9, "budget", 18)


def test_a_seed_that_failed_is_left_out_of_the_pairs() -> None:
    now = play(frozen(), GAPS, random.Random(0), broken=("b/s1",))
    assert now.judgements[0].seeds == (0, 2, 3, 4)
    assert now.judgements[0].outcome == "better"


def test_settings_are_chosen_before_any_test_value_counts() -> None:
    variants = {f"{arm}#{n}": Variant(f"{arm}#{n}", arm, {}, {}, {"lr": n}) for arm in "ab" for n in range(2)}
    base = frozen("ab")
    tuned = SweepPlan(
        name="x",
        question=base.question | {"tune": {"lr": [0, 1]}, "tune_seeds": 2},
        outputs="/nowhere",
        arms=base.arms,
        variants=variants,
        cells=tuple(Cell(key, seed, f"{key}/s{seed}") for key in variants for seed in range(8)),
        facts=base.facts,
    )
    assert seeds_of(standing(tuned, {})) == dict.fromkeys(variants, 2)
    tried = {f"{key}/s{seed}": {"val/m": float(key[-1]), "test/m": 0.1 * seed} for key in variants for seed in (0, 1)}
    assert seeds_of(standing(tuned, tried)) == {"a#0": 2, "a#1": 3, "b#0": 2, "b#1": 3}
    del tried["b#0/s1"]  # the setting of a is chosen, that of b is not
    assert seeds_of(standing(tuned, tried)) == dict.fromkeys(variants, 2)


# Real sweeps.


def until(folder: Path, **question: Any) -> SweepPlan:
    """Two arms that differ little, up to six seeds."""
    sweep_plan = tiny_plan(folder, seeds=tuple(range(6)))
    sweep_plan.facts["metric"] = {"name": "test/accuracy", "validation": "val/accuracy", "direction": "max"}
    until = {"first": 2, "most": 6, "by": "boundary"}
    sweep_plan.question.update({"until": until, "seeds": list(range(6)), **question})  # type: ignore[typeddict-item]
    return sweep_plan


def workers() -> Any:
    return build("local", {"gpus": None, "threads": 1, "workers": 2})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepPlan, Standing]:
    sweep_plan = until(tmp_path_factory.mktemp("whole") / "outputs", budget={"cells": 9})
    sweep_plan.save()
    assert run_plan(sweep_plan, workers(), say=lambda line: None, live=False) == 0
    return sweep_plan, now_of(sweep_plan)


def now_of(sweep_plan: SweepPlan) -> Standing:
    from blockyard.sweep.cell.states import read_state

    states = {cell.run: read_state(sweep_plan.path(cell)) for cell in sweep_plan.cells}
    return standing(sweep_plan, {run: now.metrics for run, now in states.items() if now.state == "done"})


def test_a_cost_is_judged_as_a_metric_is(undisturbed: tuple[SweepPlan, Standing]) -> None:
    """By the seconds of a step that the runs recorded, where less is better."""
    sweep_plan = copy.deepcopy(undisturbed[0])
    sweep_plan.facts["metric"] = {"name": "step_seconds", "validation": "val/accuracy", "direction": "min"}
    sweep_plan.question["metric"] = "step_seconds"
    seconds: dict[str, list[float]] = {}
    for cell in undisturbed[1].due:
        summary = json.loads((sweep_plan.path(cell) / "summary.json").read_text())
        seconds.setdefault(sweep_plan.variants[cell.variant].arm, []).append(summary["step_seconds"])
    (judged,) = now_of(sweep_plan).judgements
    (left,), (right,) = judged.comparison.sides
    first, second = (seconds[arm][: len(judged.gaps)] for arm in (left, right))
    assert judged.gaps == pytest.approx(np.subtract(first, second).tolist())
    result = compare(sweep_plan)
    assert (result.metric, result.direction) == ("step_seconds", "min")
    for arm in result.arms:
        assert list(arm.values.values()) == seconds[arm.name][: arm.n]


def test_a_real_sweep_stops_at_its_budget(undisturbed: tuple[SweepPlan, Standing]) -> None:
    sweep_plan, now = undisturbed
    assert (now.reason, len(now.due)) == ("budget", 8)
    assert {cell.seed for cell in now.due} == set(range(4))
    assert not any(sweep_plan.path(cell).exists() for cell in sweep_plan.cells if cell.seed > 3)


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.full)])
def test_a_sweep_that_is_killed_at_random_comes_to_the_same_decision(
    kills: int, undisturbed: tuple[SweepPlan, Standing], tmp_path: Path
) -> None:
    _, expected = undisturbed
    sweep_plan = until(tmp_path / "outputs", budget={"cells": 9})
    sweep_plan.save()
    order, killed = random.Random(kills), 0
    while killed < kills:
        process = planner(sweep_plan)
        wait_for(lambda process=process: at_work(sweep_plan) or process.poll() is not None)
        if process.poll() is not None:
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(order.uniform(0.0, 1.5))
        killed += process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert run_plan(sweep_plan, workers(), say=lambda line: None, live=False) == 0
    now = now_of(sweep_plan)
    assert [cell.run.partition("/")[2] for cell in now.due] == [cell.run.partition("/")[2] for cell in expected.due]
    assert [(one.outcome, one.gaps) for one in now.judgements] == [
        (one.outcome, one.gaps) for one in expected.judgements
    ]
    assert now.reason == expected.reason
    assert compare(sweep_plan).answer == compare(undisturbed[0]).answer
