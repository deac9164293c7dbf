"""Comparisons of sweeps that stop when they are decided: verdicts, clauses, evidence, error rates, warnings."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import sequential as simulated
from blockyard.report.comparison import Comparison, compare
from blockyard.report.page.document import render
from blockyard.report.render import columns
from blockyard.report.stats.sequential import skewed, split_share, two_groups
from blockyard.sweep.stopping.evidence import ALPHA
from tests.report.report_runs import norms_sweep, warned

BASE = [0.900, 0.910, 0.905, 0.900, 0.902, 0.908]
FIGURES: dict[str, dict[int, float | str]] = {
    "post": dict(enumerate(BASE)),
    "pre": {seed: BASE[seed] + gap for seed, gap in enumerate([0.03, 0.033, 0.028, 0.031])},
    "alibi": {seed: BASE[seed] + gap for seed, gap in enumerate([0.002, -0.001, 0.001, -0.002, 0.001, 0.0])},
}

SIGNS = {"post": 0, "pre": 1, "alibi": -1}


def compared(folder: Path, **question: Any) -> Comparison:
    """The comparison of three arms, of which `pre` was decided after four of six seeds."""
    figures = {arm: {**dict.fromkeys(range(6), "missing"), **own} for arm, own in FIGURES.items()}
    question_of = {"until": {"first": 3, "most": 6}, **question}
    return compare(norms_sweep(folder, values=figures, question=question_of), changes=False)


def test_the_verdicts_are_those_of_the_evidence(tmp_path: Path) -> None:
    result = compared(tmp_path, margin=0.01)
    pre, alibi = result.arm("pre"), result.arm("alibi")
    assert (pre.verdict, alibi.verdict) == ("better", "no difference that matters")
    assert (pre.n, pre.planned) == (4, 4)
    gap = pre.difference
    assert gap is not None
    assert gap.t_p is None
    assert gap.permutation_p is None
    assert gap.e is not None
    assert gap.holm_p == pytest.approx(2 / gap.e)
    low, high = gap.interval or (0, 0)
    assert 0 < low < 0.0305 < high
    assert "from 4 seeds on" in pre.words
    assert not warned(result, "missing")


def test_by_a_boundary_the_verdicts_have_p_values_and_intervals_over_all_looks(tmp_path: Path) -> None:
    result = compared(tmp_path, margin=0.01, until={"first": 3, "most": 6, "by": "boundary"})
    pre, alibi = result.arm("pre"), result.arm("alibi")
    assert (pre.verdict, alibi.verdict) == ("better", "no difference that matters")
    gap = pre.difference
    assert gap is not None
    assert gap.e is None
    assert gap.t_p is not None
    assert gap.holm_p == pytest.approx(2 * gap.t_p)
    assert "95 % interval over all looks" in pre.words
    assert "p = " in pre.words
    assert " e = " not in pre.words
    assert result.evidence is not None
    assert result.evidence.by == "boundary"
    header, rows = columns.quality(result)
    assert header[5] == "p alone"
    assert rows[1][5]
    assert "hold at all looks" in " ".join(columns.notes(result)).replace("holds", "hold")
    page = render(result.as_dict())
    assert '"by": "boundary"' in page or '"by":"boundary"' in page


def test_an_arm_that_no_clause_names_is_not_asked(tmp_path: Path) -> None:
    result = compared(tmp_path, expect="pre > post", until={"first": 3, "most": 6, "by": "boundary"})
    assert result.arm("alibi").words == "Not asked: no clause compares it with post."


def test_a_small_difference_that_is_decided_is_said_to_be_overestimated(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(0.0, 0.01, size=20)
    noise -= noise.mean()
    until = {"first": 3, "most": 20, "by": "boundary"}
    for size, told in ((0.75, True), (3.0, False)):
        figures: dict[str, dict[int, float | str]] = {"post": dict.fromkeys(range(20), 0.5)}
        gain = size * noise.std(ddof=1)
        figures["pre"] = dict(enumerate((0.5 + gain + noise).tolist()))
        figures["alibi"] = dict.fromkeys(range(20), 0.5)
        plan = norms_sweep(tmp_path / str(size), values=figures, question={"until": until, "expect": "pre > post"})
        result = compare(plan, changes=False)
        assert result.expect is not None
        assert result.expect.verdict == "supported"
        assert ("The size of the difference in pre > post is likely too large" in result.answer) == told


def test_an_interval_that_leaves_out_its_mean_is_withdrawn(tmp_path: Path) -> None:
    figures: dict[str, dict[int, float | str]] = {
        "post": dict.fromkeys(range(5), 0.05),
        "pre": dict(enumerate([0.93, 0.92, 0.91, 0.96, -0.84])),
        "alibi": dict.fromkeys(range(5), 0.05),
    }
    until = {"first": 3, "most": 5, "by": "e-values"}
    result = compare(norms_sweep(tmp_path, values=figures, question={"until": until}), changes=False)
    gap = result.arm("pre").difference
    assert gap is not None
    assert gap.interval is None
    assert "its confidence sequence leaves it out and is withdrawn" in result.arm("pre").words


def test_what_was_given_up_says_what_it_would_take(tmp_path: Path) -> None:
    noise = [0.004, -0.005, 0.006, -0.004, 0.005, -0.006, 0.0045, -0.003, 0.002, -0.001]
    figures: dict[str, dict[int, float | str]] = {
        "post": dict.fromkeys(range(10), 0.5),
        "pre": {seed: 0.5 + gap for seed, gap in enumerate(noise)},
        "alibi": dict.fromkeys(range(3), 0.5),
    }
    for arm in figures:
        figures[arm] = {**dict.fromkeys(range(20), "missing"), **figures[arm]}
    until = {"first": 5, "most": 20, "by": "boundary"}
    plan = norms_sweep(tmp_path, values=figures, question={"until": until, "expect": "pre > post"})
    result = compare(plan, changes=False)
    assert result.evidence is not None
    assert result.evidence.reason == "beyond the limit"
    assert "what is open would take more seeds than the limit of 20. Undecided: pre > post (" in result.answer


def test_finished_runs_after_the_stop_count_in_means_and_are_told(tmp_path: Path) -> None:
    """Six seeds were run before the sweep was asked to stop when it is decided, which it is after fewer."""
    gaps = [0.03, 0.033, 0.028, 0.031, 0.029, 0.03]
    figures = {arm: {seed: BASE[seed] + sign * gaps[seed] for seed in range(6)} for arm, sign in SIGNS.items()}
    result = compare(norms_sweep(tmp_path, values=figures, question={"until": {"first": 3, "most": 6}}), changes=False)
    assert (result.arm("pre").n, result.arm("pre").planned) == (6, 6)
    assert warned(result, "after those at which the sweep stopped")


def test_an_open_claim_of_better_may_end_at_an_interval_below_the_margin(tmp_path: Path) -> None:
    result = compared(tmp_path, expect="alibi > post", margin=0.0005)
    assert result.expect is not None
    (clause,) = result.expect.clauses
    assert clause.verdict == "undecided"
    assert "a verdict takes e = 20, or an interval below 0.0005" in clause.reason


def test_what_is_open_says_what_it_would_take(tmp_path: Path) -> None:
    result = compared(tmp_path)
    alibi = result.arm("alibi")
    assert alibi.verdict == "undecided"
    assert "where a verdict takes e = 20" in alibi.words
    assert "would take about" in alibi.words or "more than 1,000 seeds" in alibi.words
    assert result.evidence is not None
    assert result.evidence.reason == "most seeds"
    assert "Undecided: alibi." in result.answer


def test_each_clause_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    result = compared(tmp_path, expect="pre > post and alibi > pre and alibi > post")
    assert result.expect is not None
    assert [(each.text, each.verdict) for each in result.expect.clauses] == [
        ("pre > post", "supported"),
        ("alibi > pre", "contradicted"),
        ("alibi > post", "undecided"),
    ]
    assert result.expect.verdict == "contradicted"
    lines = columns.clause_lines(result)
    assert [line.partition(": ")[0] for line in lines] == ["pre > post", "alibi > pre", "alibi > post"]


def test_clauses_of_a_fixed_number_of_seeds_have_verdicts_too(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path, question={"expect": "pre > post and alibi > post"}), changes=False)
    assert result.expect is not None
    assert [each.verdict for each in result.expect.clauses] == ["supported", "undecided"]


def test_the_evidence_has_a_value_for_every_seed(tmp_path: Path) -> None:
    result = compared(tmp_path, margin=0.01)
    assert result.evidence is not None
    pre, alibi = result.evidence.looks
    assert (pre.at, pre.outcome, pre.seeds) == (4, "better", [0, 1, 2, 3])
    assert pre.log10_e[3] >= pre.threshold > pre.log10_e[2]
    assert len(alibi.low) == len(alibi.mean) == 6
    assert result.evidence.reason == "decided"
    assert "every comparison is decided" in result.evidence.words
    page = render(result.as_dict())
    assert "Evidence over seeds" in page


def test_a_fixed_number_of_seeds_has_no_evidence(tmp_path: Path) -> None:
    result = compare(norms_sweep(tmp_path), changes=False)
    assert result.evidence is None
    gap = result.arm("pre").difference
    assert gap is not None
    assert gap.t_p is not None


# Error rates.


@pytest.mark.parametrize("kind", [kind for kind in simulated.NOISES if kind not in simulated.OF_DIFFERENCES])
@pytest.mark.parametrize("arms", [1, 4])
def test_without_an_effect_few_sweeps_claim_one(kind: str, arms: int) -> None:
    """Though they look after every seed from 2 to 20."""
    gaps = simulated.drawn(kind, 1_500, arms)
    outcome, taken = simulated.run_rounds(gaps, None)
    simulated.check(gaps, outcome, taken, None)
    assert (outcome != 0).any(1).mean() <= ALPHA


def test_the_simulation_sees_a_t_test_that_looks_after_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What e-values are for: p < 0.05 at any of 3 to 20 seeds is wrong far more often than 5 %."""
    from scipy import stats

    def peeking(gaps: np.ndarray) -> np.ndarray:
        n = np.arange(1, gaps.shape[-1] + 1)
        mean = np.cumsum(gaps, -1) / n
        squares = np.cumsum(gaps**2, -1) - n * mean**2
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.abs(mean) / np.sqrt(squares / (n * (n - 1)))
            e = -np.log(2 * stats.t.sf(t, n - 1))
        return np.where(n < 3, 0.0, e)

    monkeypatch.setattr(simulated, "log_es", peeking)
    outcome, _ = simulated.run_rounds(simulated.drawn("normal", 1_000, 1), None)
    assert (outcome != 0).mean() > 0.15


def test_a_difference_as_large_as_the_margin_is_seldom_called_none() -> None:
    gaps = simulated.drawn("normal", 1_500, 4, 1.0)
    outcome, taken = simulated.run_rounds(gaps, 1.0)
    simulated.check(gaps, outcome, taken, 1.0)
    assert (outcome == 2).any(1).mean() <= ALPHA
    assert (outcome == -1).any(1).mean() <= ALPHA / 2


def test_clear_effects_take_few_seeds() -> None:
    for rule in (simulated.E_VALUES, simulated.BOUNDARY):
        outcome, taken = simulated.run_rounds(simulated.drawn("normal", 1_000, 1, 3.0), None, rule)
        assert (outcome == 1).mean() > 0.99
        assert 4.3 < taken.mean() < 5.5


@pytest.mark.parametrize("arms", [1, 4])
def test_without_an_effect_a_boundary_errs_as_often_as_it_says(arms: int) -> None:
    gaps = simulated.drawn("normal", 1_500, arms)
    outcome, taken = simulated.run_rounds(gaps, None, simulated.BOUNDARY)
    simulated.check(gaps, outcome, taken, None, simulated.BOUNDARY)
    error = math.sqrt(ALPHA * (1 - ALPHA) / len(gaps))
    assert (outcome != 0).any(1).mean() <= ALPHA + 2.5 * error
    outcome, _ = simulated.run_rounds(simulated.drawn("normal", 1_500, arms, 1.0), 1.0, simulated.BOUNDARY)
    assert (outcome == 2).any(1).mean() <= ALPHA + 2.5 * error


def test_a_small_effect_is_decided_more_than_twice_as_often_by_a_boundary() -> None:
    gaps = simulated.drawn("normal", 1_500, 1, 0.5)
    shares = [
        (simulated.run_rounds(gaps, None, rule)[0] == 1).mean() for rule in (simulated.BOUNDARY, simulated.E_VALUES)
    ]
    assert shares[0] > 0.46
    assert shares[1] < 0.26


# Where a mean says little.


def test_skewed_differences_are_seen() -> None:
    draw = np.random.default_rng(0)
    assert skewed([0.0, 0.01, -0.01, 0.02, 0.9])
    assert not skewed([0.1, -0.2, 0.15, -0.1])
    assert np.mean([skewed(list(draw.normal(size=10))) for _ in range(800)]) < 0.08
    assert np.mean([skewed(list(draw.exponential(size=20))) for _ in range(200)]) > 0.6


def test_two_groups_are_seen() -> None:
    groups = two_groups([0.02, 0.93, 0.0, 0.15, 0.89, 0.95])
    assert groups == ([0.0, 0.02, 0.15], [0.89, 0.93, 0.95])
    assert two_groups([0.9, 0.1]) is None
    assert two_groups([0.9, 0.89, 0.1, 0.11]) == ([0.1, 0.11], [0.89, 0.9])
    rounded = [0.1 * 3, 0.3, 0.3, 0.1 * 3, 0.3, 0.3, 0.3, 0.3]  # 0.30000000000000004 and 0.3
    assert two_groups(rounded) is None
    assert not skewed(rounded)
    draw = np.random.default_rng(0)
    assert np.mean([two_groups(list(draw.normal(size=8))) is not None for _ in range(800)]) < 0.03


def test_the_share_of_a_cut_is_that_of_an_analysis_of_variance() -> None:
    values = [1.0, 2.0, 5.0, 6.0, 7.0]
    whole = np.var(values) * 5
    within = np.var(values[:2]) * 2 + np.var(values[2:]) * 3
    assert split_share(values, 2) == pytest.approx(1 - within / whole)
    assert math.isclose(split_share([3.0, 3.0, 3.0], 1), 0.0)


def test_the_comparison_warns_and_answers_other_questions(tmp_path: Path) -> None:
    figures: dict[str, dict[int, float | str]] = {
        "post": dict.fromkeys(range(6), 0.5),
        "pre": dict(enumerate([0.02, 0.93, 0.01, 0.95, 0.03, 0.96])),
        "alibi": dict(enumerate([0.5, 0.501, 0.499, 0.5, 0.502, 0.8])),
    }
    until = {"until": {"first": 6, "most": 6}}
    result = compare(norms_sweep(tmp_path, values=figures, question=until), changes=False)
    assert warned(result, "pre: its runs fall into two groups", "3 around 0.02 and 3 around 0.947")
    assert warned(result, "alibi: the differences are skewed", "by the signs", "by betting")


def test_groups_are_looked_for_in_the_differences(tmp_path: Path) -> None:
    """Arms that differ by their data order are not in groups themselves."""
    base = [0.31, 0.52, 0.44, 0.63]
    gaps = [0.2, 0.201, -0.2, -0.199]
    figures: dict[str, dict[int, float | str]] = {
        "post": dict(enumerate(base)),
        "pre": {seed: value + gap for seed, (value, gap) in enumerate(zip(base, gaps, strict=True))},
        "alibi": dict.fromkeys(range(4), 0.5),
    }
    until = {"first": 4, "most": 4, "by": "boundary"}
    result = compare(norms_sweep(tmp_path, values=figures, question={"until": until}), changes=False)
    assert warned(result, "pre: the differences fall into two groups, 2 around -0.2 and 2 around 0.2")
