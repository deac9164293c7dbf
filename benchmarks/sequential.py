"""How often sweeps that stop when they are decided are wrong, and how many cells they take: simulated sweeps.

    python benchmarks/sequential.py                all tables below
    python benchmarks/sequential.py looks          the error that a boundary has spent after each look
    python benchmarks/sequential.py errors         no effect: the share of sweeps with any false verdict
    python benchmarks/sequential.py power          seeds to a verdict, by rule and effect
    python benchmarks/sequential.py inflation      how much too large a difference looks where it was decided
    python benchmarks/sequential.py margin         a true difference as large as the margin: false equivalence; and none
    python benchmarks/sequential.py claims         `~`, `>=` and `>` by the true difference in margins: how clauses end
    python benchmarks/sequential.py grown          undecided by a boundary, then gone on by e-values: false verdicts
    python benchmarks/sequential.py groups         the limits of `report.stats.sequential.two_groups`
    python benchmarks/sequential.py effort         the shipped questions, drawn from their recorded means: cells by rule

A sweep looks after every seed from the first look to 20. Arms share the baseline's noise as in a real sweep, where the
table says so; decided arms get no more seeds. The verdicts are those of `sweep.stopping`, computed for all sweeps at
once; the first 40 are checked against it.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from blockyard.sweep.cells import Arm, Cell, Variant
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.stopping import boundary
from blockyard.sweep.stopping.decisions import ArmComparison, comparisons, judge
from blockyard.sweep.stopping.due import standing
from blockyard.sweep.stopping.evidence import ALPHA, PRIOR, radius
from blockyard.sweep.stopping.forecast import PossibleEnds, beyond_limit
from blockyard.sweep.stopping.rule import StoppingRule

MOST = 20
ROOT = Path(__file__).resolve().parents[1]
BOUNDARY = StoppingRule("boundary", 3, MOST)
E_VALUES = StoppingRule("e-values", 3, MOST)
EARLIER = StoppingRule("e-values", 2, MOST)  # looks at two seeds and more
Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
NOISES: dict[str, Noise] = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "heavy (t, 2 degrees)": lambda draw, shape: draw.standard_t(2, size=shape),
    "quantised (steps of 1.25 sd)": lambda draw, shape: np.round(0.8 * draw.normal(size=shape)),
    "skewed (exponential)": lambda draw, shape: draw.exponential(size=shape) - 1,
    "skewed (lognormal)": lambda draw, shape: draw.lognormal(size=shape) - math.exp(0.5),
    "two groups": lambda draw, shape: draw.choice([-0.5, 0.5], size=shape) + draw.normal(0, 0.02, size=shape),
    "one run of ten fails": lambda draw, shape: (
        np.where(draw.random(shape) < 0.1, -0.9, 0.1) + draw.normal(0, 0.02, size=shape)
    ),
}
# A difference of two such values is symmetric, so these are the noise of the differences themselves.
OF_DIFFERENCES = ("skewed (exponential)", "skewed (lognormal)", "two groups", "one run of ten fails")


def log_es(gaps: np.ndarray) -> np.ndarray:
    """log e after each seed: (sweeps, arms, n) -> the same."""
    n = np.arange(1, gaps.shape[-1] + 1)
    mean = np.cumsum(gaps, -1) / n
    squares = np.maximum(np.cumsum(gaps**2, -1) - n * mean**2, 0.0)
    spread, v = 1 + n * PRIOR, np.maximum(n - 1, 1)
    same = (np.abs(gaps - gaps[..., :1]) < 1e-9).cumprod(-1).astype(bool)  # all differences so far are equal
    with np.errstate(divide="ignore", invalid="ignore"):
        t2 = np.where(same, 0.0, n * v * mean**2 / squares)
    e = -0.5 * np.log(spread) + n / 2 * (np.log1p(t2 / v) - np.log1p(t2 / (v * spread)))
    signs = np.array([k * math.log(2) + _mixture(k) for k in range(1, gaps.shape[-1] + 1)])
    e = np.where(same, np.where(gaps[..., :1] == 0, 0.0, signs), e)
    e[..., 0] = 0.0
    return e


def _mixture(n: int) -> float:
    return math.lgamma(n + 0.5) + math.lgamma(0.5) - math.lgamma(n + 1) - math.log(math.pi)


def ends(gaps: np.ndarray, alpha: float, first: int) -> tuple[np.ndarray, np.ndarray]:
    """The confidence sequences after each seed: (sweeps, arms, n) -> 2 x the same."""
    n = np.arange(1, gaps.shape[-1] + 1)
    mean = np.cumsum(gaps, -1) / n
    squares = np.maximum(np.cumsum(gaps**2, -1) - n * mean**2, 0.0)
    spread = 1 + n * PRIOR
    ratio = np.exp(2 / n * (np.log(1 / alpha) + 0.5 * np.log(spread)))
    with np.errstate(divide="ignore", invalid="ignore"):
        half = np.where(ratio < spread, np.sqrt(squares / n * (ratio - 1) / (1 - ratio / spread)), np.inf)
    same = (np.abs(gaps - gaps[..., :1]) < 1e-9).cumprod(-1).astype(bool)
    half = np.where(same, np.inf, half)
    half[..., : first - 1] = np.inf
    low, high = np.maximum.accumulate(mean - half, -1), np.minimum.accumulate(mean + half, -1)
    return low, high


def look_evidence(gaps: np.ndarray, rule: StoppingRule) -> np.ndarray:
    """log e, or -log p by a boundary, after each seed; 0 before the first look: (sweeps, arms, n) -> the same."""
    evidence = log_es(gaps)
    if rule.by == "boundary":
        same = (np.abs(gaps - gaps[..., :1]) < 1e-9).cumprod(-1).astype(bool)
        for n in range(rule.first_look, gaps.shape[-1] + 1):
            seen = gaps[..., :n]
            with np.errstate(divide="ignore", invalid="ignore"):
                t = seen.mean(-1) * math.sqrt(n) / seen.std(-1, ddof=1)
            t = np.where(same[..., n - 1], 0.0, t)
            log_ps = boundary.look_log_ps(t.ravel().tolist(), [n] * t.size, rule.first, rule.most)
            evidence[..., n - 1] = np.where(same[..., n - 1], evidence[..., n - 1], -np.reshape(log_ps, t.shape))
    evidence[..., : rule.first_look - 1] = 0.0
    return evidence


def look_ends(gaps: np.ndarray, rule: StoppingRule, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """The intervals after each seed: (sweeps, arms, n) -> 2 x the same."""
    if rule.by != "boundary":
        return ends(gaps, alpha, rule.first_look)
    low, high = np.full(gaps.shape, -np.inf), np.full(gaps.shape, np.inf)
    for n in range(rule.first_look, gaps.shape[-1] + 1):
        seen = gaps[..., :n]
        deviation = seen.std(-1, ddof=1)
        half = boundary.critical_t(n, alpha, rule.first, rule.most) * deviation / math.sqrt(n)
        half = np.where(deviation < 1e-9, np.inf, half)
        low[..., n - 1], high[..., n - 1] = seen.mean(-1) - half, seen.mean(-1) + half
    return low, high


def run_rounds(gaps: np.ndarray, margin: float | None, rule: StoppingRule = EARLIER) -> tuple[np.ndarray, np.ndarray]:
    """Stop each arm when it is decided. (sweeps, arms, n) -> outcome (1, -1: differs; 2: equivalent; 0) and seeds."""
    sweeps, arms, most = gaps.shape
    largest = np.maximum.accumulate(look_evidence(gaps, rule), -1)
    sums = np.cumsum(gaps, -1)
    low, high = look_ends(gaps, rule, 2 * ALPHA / arms)
    outcome, taken = np.zeros((sweeps, arms), int), np.full((sweeps, arms), most)
    seen = np.zeros((sweeps, arms))  # the largest evidence of the seeds that each arm got
    for n in range(rule.first_look, most + 1):
        going = outcome == 0
        seen = np.where(going, largest[..., n - 1], seen)
        order = np.argsort(-seen, axis=1)
        ranked = np.take_along_axis(seen, order, 1) >= np.log((arms - np.arange(arms)) / ALPHA)
        rejected = np.zeros_like(going)
        np.put_along_axis(rejected, order, np.logical_and.accumulate(ranked, 1), 1)
        new = np.where(rejected, np.sign(sums[..., n - 1]).astype(int), 0)
        if margin is not None:
            mean = sums[..., n - 1] / n
            below, above = low[..., n - 1], high[..., n - 1]
            holds = (below <= mean) & (mean <= above)
            new = np.where(holds & (below > -margin) & (above < margin), 2, new)
        taken = np.where(going & (new != 0), n, taken)
        outcome = np.where(going, new, outcome)
    return outcome, taken


def check(
    gaps: np.ndarray, outcome: np.ndarray, taken: np.ndarray, margin: float | None, rule: StoppingRule = EARLIER
) -> None:
    """Compare with the product's own judgement of the seeds that each arm got."""
    names = {"better": 1, "worse": -1, "equivalent": 2, None: 0}
    for sweep in range(min(40, len(gaps))):
        arms = [str(k) for k in range(gaps.shape[1])]
        values = {"base": dict.fromkeys(range(gaps.shape[-1]), 0.0)}
        values |= {arm: dict(enumerate(gaps[sweep, k, : taken[sweep, k]])) for k, arm in enumerate(arms)}
        asked = [ArmComparison(arm, ((arm,), ("base",))) for arm in arms]
        judged = judge(asked, values, range(gaps.shape[-1]), "max", margin, rule=rule)
        assert [names[one.outcome] for one in judged] == list(outcome[sweep]), (sweep, judged)


def drawn(
    kind: str, sweeps: int, arms: int, effects: np.ndarray | float = 0.0, seed: int = 0, most: int = MOST
) -> np.ndarray:
    """Differences to a baseline whose noise all arms share, with standard deviation 1 where the noise has one."""
    draw = np.random.default_rng(seed)
    noise = NOISES[kind](draw, (sweeps, arms + 1, most))
    if kind in OF_DIFFERENCES:
        return noise[:, 1:] + np.asarray(effects)
    if kind.startswith("quantised"):
        return noise[:, 1:] - noise[:, :1] + np.asarray(effects)
    return (noise[:, 1:] - noise[:, :1]) / math.sqrt(2) + np.asarray(effects)


def looks(sweeps: int) -> None:
    """Print the share of sweeps without an effect in which a difference was found so far, at every look."""
    print("| seeds | nominal p of the look | exact | simulated |")
    print("|---|---|---|---|")
    outcome, taken = run_rounds(drawn("normal", 10 * sweeps, 1), None, BOUNDARY)
    shape = [min(math.sqrt(MOST / n), 1.3) for n in range(BOUNDARY.first_look, MOST + 1)]
    last = boundary.critical_t(MOST, ALPHA, BOUNDARY.first, MOST)
    score = np.array([_score(last, MOST)])
    for look, n in enumerate(range(BOUNDARY.first_look, MOST + 1), start=1):
        nominal = 2 * _tail(boundary.critical_t(n, ALPHA, BOUNDARY.first, MOST), n)
        (exact,) = boundary.crossing(score, shape[:look], BOUNDARY.first_look, boundary.student_moves)
        simulated = ((outcome != 0) & (taken <= n)).mean()
        print(f"| {n} | {nominal:.4f} | {exact:.2%} | {simulated:.2%} |")


def _tail(t: float, n: int) -> float:
    from scipy import special

    return float(special.stdtr(n - 1, -t))


def _score(t: float, n: int) -> float:
    from scipy import special

    return -float(special.ndtri(_tail(t, n)))


def errors(sweeps: int) -> None:
    """Print the share of sweeps with any false verdict, by rule and number of arms."""
    for first in (3, 5):
        rules = {"boundary": StoppingRule("boundary", first, MOST), "e-values": StoppingRule("e-values", first, MOST)}
        heads = " | ".join(f"{name}, {arms} arm{'s' * (arms > 1)}" for name in rules for arms in (1, 3, 8))
        print(f"| differences, `first: {first}` | {heads} |")
        print(f"|---|{'---|' * 6}")
        for kind in NOISES:
            rates = []
            for rule in rules.values():
                for arms in (1, 3, 8):
                    gaps = drawn(kind, sweeps, arms)
                    outcome, taken = run_rounds(gaps, None, rule)
                    check(gaps, outcome, taken, None, rule)
                    rates.append((outcome != 0).any(1).mean())
            print(f"| {kind} | {' | '.join(f'{rate:.1%}' for rate in rates)} |")
        print()


def power(sweeps: int) -> None:
    """Print how many sweeps of one arm are decided, and their mean seeds, by rule and effect."""
    from blockyard.report.stats.verdict import t_test_power

    print("| effect (d) | boundary | with giving up | e-values | fixed design of equal power, at most 99 % |")
    print("|---|---|---|---|---|")
    for effect in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0):
        gaps = drawn("normal", sweeps, 1, effect)
        outcome, taken = run_rounds(gaps, None, BOUNDARY)
        check(gaps, outcome, taken, None, BOUNDARY)
        cells = [f"{(outcome != 0).mean():.1%}, {taken.mean():.1f}"]
        outcome, taken = _give_up(gaps, outcome, taken)
        cells.append(f"{(outcome != 0).mean():.1%}, {taken.mean():.1f}")
        fixed = ""
        if effect:
            right = min((outcome == 1).mean(), 0.99)
            fixed = str(next(n for n in range(3, 200) if t_test_power(effect, n, ALPHA) >= right))
        outcome, taken = run_rounds(gaps, None, E_VALUES)
        check(gaps, outcome, taken, None, E_VALUES)
        cells.append(f"{(outcome != 0).mean():.1%}, {taken.mean():.1f}")
        print(f"| {effect:g} | {' | '.join(cells)} | {fixed} |")


def _give_up(gaps: np.ndarray, outcome: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return outcomes and seeds of sweeps of one arm that stop where their forecast is beyond the limit."""
    possible = PossibleEnds(BOUNDARY, None, None, ALPHA, 2 * ALPHA)
    outcome, taken = outcome.copy(), taken.copy()
    for sweep in range(len(gaps)):
        for n in range(2 * BOUNDARY.first, int(taken[sweep, 0])):
            if beyond_limit(possible, gaps[sweep, 0, :n].tolist()):
                outcome[sweep, 0], taken[sweep, 0] = 0, n
                break
    return outcome, taken


def inflation(sweeps: int) -> None:
    """Print the mean difference where it was decided, by the true one."""
    print("| true d | decided | mean of the decided | times the true one |")
    print("|---|---|---|---|")
    for effect in (0.3, 0.5, 0.7, 1.0, 1.5, 2.0):
        gaps = drawn("normal", sweeps, 1, effect)
        outcome, taken = run_rounds(gaps, None, BOUNDARY)
        decided = outcome[:, 0] != 0
        means = np.cumsum(gaps[:, 0], -1)[np.arange(sweeps), taken[:, 0] - 1] / taken[:, 0]
        mean = means[decided].mean()
        print(f"| {effect:g} | {decided.mean():.1%} | {mean:.2f} | {mean / effect:.2f} |")


def margins(sweeps: int) -> None:
    """Print how often arms are called equivalent that differ by the margin, and how soon those that do not differ."""
    rules = {"boundary": BOUNDARY, "e-values": E_VALUES}
    heads = " | ".join(f"{name}, {arms} arm{'s' * (arms > 1)}" for name in rules for arms in (1, 3, 8))
    print(f"| differences | margin (sd) | {heads} |")
    print(f"|---|---|{'---|' * 6}")
    for kind in NOISES:
        unit = float(np.std(drawn(kind, 3_000, 1))) if kind in OF_DIFFERENCES else 1.0
        for margin in (1.0, 2.0):
            rates = []
            for rule in rules.values():
                for arms in (1, 3, 8):
                    # The long tail lies away from equality, where most values look closer to it than the mean.
                    away = -1 if kind == "one run of ten fails" else 1
                    gaps = away * drawn(kind, sweeps, arms) / unit + margin
                    outcome, taken = run_rounds(gaps, margin, rule)
                    check(gaps, outcome, taken, margin, rule)
                    rates.append((outcome == 2).any(1).mean())
            print(f"| {kind} | {margin:g} | {' | '.join(f'{rate:.1%}' for rate in rates)} |")
    print("\n| no difference, margin (sd) | equivalent by the boundary, seeds | by e-values, seeds |")
    print("|---|---|---|")
    for margin in (0.75, 1.0, 1.5, 2.0):
        cells = []
        for rule in rules.values():
            outcome, taken = run_rounds(drawn("normal", sweeps, 1), margin, rule)
            cells.append(f"{(outcome == 2).mean():.1%}, {taken.mean():.1f}")
        print(f"| {margin:g} | {' | '.join(cells)} |")


def claims(sweeps: int) -> None:
    """Print how claims with a margin end by a boundary, by the true difference in margins.

    `>=` names first what is worse by the difference, `>` what is better by it.
    """
    heads = " | ".join(f"{sign} supported | contradicted" for sign in ("~", ">=", ">"))
    print(f"| true difference, of the margin | margin (sd) | {heads} |")
    print("|---|---|---|---|---|---|---|---|")
    for share in (0.0, 0.5, 0.9, 1.1, 2.0):
        for margin in (1.0, 2.0):
            gaps = drawn("normal", sweeps, 1, share * margin)[:, 0]
            cells = []
            for sign, factor in (("~", 1.0), (">=", -1.0), (">", 1.0)):
                clause = ArmComparison("a", (("a",), ("base",)), sign)
                verdicts = []
                for of_sweep in factor * gaps:
                    values = {"base": dict.fromkeys(range(MOST), 0.0), "a": dict(enumerate(of_sweep.tolist()))}
                    verdicts.append(judge([clause], values, range(MOST), "max", margin, rule=BOUNDARY)[0].verdict)
                cells += [verdicts.count("supported") / sweeps, verdicts.count("contradicted") / sweeps]
            print(f"| {share:g} | {margin:g} | {' | '.join(f'{cell:.1%}' for cell in cells)} |")


def grown(sweeps: int) -> None:
    """Print the share of false verdicts where a sweep that a boundary leaves open goes on by e-values, to 40 seeds."""
    gaps = drawn("normal", 4 * sweeps, 1, most=2 * MOST)
    first, _ = run_rounds(gaps[..., :MOST], None, BOUNDARY)
    then, _ = run_rounds(gaps, None, StoppingRule("e-values", 3, 2 * MOST))
    wrong = first != 0
    print(f"false verdicts: {wrong.mean():.2%} by the boundary, {(wrong | (then != 0)).mean():.2%} by either")


def groups(sweeps: int) -> None:
    """Print the share of variance that the best cut explains, which 1 % of normal samples exceed."""
    draw = np.random.default_rng(0)
    for n in (4, 5, 6, 8, 10, 12, 16, 20):
        x = np.sort(draw.normal(size=(sweeps, n)), axis=1)
        whole = ((x - x.mean(1, keepdims=True)) ** 2).sum(1)
        within = np.stack(
            [
                ((x[:, :k] - x[:, :k].mean(1, keepdims=True)) ** 2).sum(1)
                + ((x[:, k:] - x[:, k:].mean(1, keepdims=True)) ** 2).sum(1)
                for k in range(2, n - 1)
            ]
        )
        print(f"{n}: {np.quantile(1 - within.min(0) / whole, 0.99):.3f}")


@dataclass(frozen=True)
class Shipped:
    """A shipped question with what was recorded of it.

    cells: that were run; means: of the arms; deviations: of the values of each arm, as the clauses' intervals say
    """

    plan: SweepPlan
    cells: int
    means: dict[str, float]
    deviations: dict[str, float]


def effort(sweeps: int) -> None:
    """Print the cells of the shipped questions by their earlier rule and by the boundary, also with `first: 3`.

    The values of a sweep are drawn from the recorded means of its arms and the deviations of their differences.
    """
    questions = _shipped()
    rules = {"earlier rule": {}, "boundary": {"by": "boundary"}, "boundary from 3": {"by": "boundary", "first": 3}}
    print(f"| question | recorded | {' | decided | '.join(rules)} | decided |")
    print(f"|---|---|{'---|---|' * len(rules)}")
    totals = np.zeros(len(rules))
    wrong = np.zeros(len(rules))
    clauses = 0
    for shipped in questions:
        cells, decided = np.zeros(len(rules)), np.zeros(len(rules))
        for sweep in range(sweeps):
            draw = np.random.default_rng(sweep)
            values = {
                f"{arm}/s{seed}": {"m": mean + shipped.deviations[arm] * draw.normal()}
                for arm, mean in shipped.means.items()
                for seed in shipped.plan.question["seeds"]
            }
            for number, changes in enumerate(rules.values()):
                now = standing(_by(shipped.plan, changes), values)
                cells[number] += len(now.due) / sweeps
                decided[number] += sum(one.outcome is not None for one in now.judgements) / sweeps
                wrong[number] += sum(_against(one, shipped) for one in now.judgements) / sweeps
        clauses += len(now.judgements)
        totals += cells
        ends = [f"{cells[rule]:.1f} | {decided[rule]:.1f} of {len(now.judgements)}" for rule in range(len(rules))]
        print(f"| {shipped.plan.name} | {shipped.cells} | {' | '.join(ends)} |")
    recorded = sum(shipped.cells for shipped in questions)
    print(f"\n{len(questions)} questions with {clauses} clauses, {recorded} cells recorded")
    for name, cells_of_rule, wrong_of_rule in zip(rules, totals, wrong, strict=True):
        print(
            f"{name}: {cells_of_rule:.0f} cells, {totals[0] / cells_of_rule:.2f} times fewer than the earlier rule, "
            f"{recorded / cells_of_rule:.2f} than recorded; {wrong_of_rule / clauses:.1%} of clauses false"
        )


def _shipped() -> list[Shipped]:
    """Return the questions of tests/golden/plans whose record has a confidence sequence of every clause."""
    pattern = re.compile(r"[+-][\d.e+-]+ \(95 % confidence sequence ([\d.e+-]+) to ([\d.e+-]+)\).*?(\d+) seeds")
    questions = []
    for record in json.loads((ROOT / "docs/verdicts.json").read_text(encoding="utf-8")):
        path = ROOT / f"tests/golden/plans/{record['sweep']}.json"
        clauses = [pattern.match(reason) for _, _, reason in record.get("clauses", ())]
        if not clauses or not all(clauses) or not path.is_file():
            continue
        golden = json.loads(path.read_text(encoding="utf-8"))
        if not golden["question"].get("until"):
            continue
        plan = _plan(record["sweep"], golden)
        means = {arm["name"]: arm["mean"] for arm in record["arms"]}
        squares: dict[str, list[float]] = {arm.name: [] for arm in plan.arms}
        for clause, numbers in zip(comparisons(golden["question"]["expect"], list(means), None), clauses, strict=True):
            assert numbers is not None
            low, high, n = float(numbers[1]), float(numbers[2]), int(numbers[3])
            square = ((high - low) / 2 / radius(n, 1.0, ALPHA)) ** 2 / (n - 1)
            for arm in clause.arms:
                squares[arm].append(square / len(clause.arms))
        variances = {arm: statistics.fmean(of_arm) for arm, of_arm in squares.items() if of_arm}
        largest = max(variances.values())
        deviations = {arm: math.sqrt(variances.get(arm, largest)) for arm in squares}
        questions.append(Shipped(plan, record["cells"][0], means, deviations))
    return questions


def _plan(name: str, golden: Mapping[str, Any]) -> SweepPlan:
    """Return a plan with a cell for each arm and seed, without settings."""
    arms = [arm["name"] for arm in golden["arms"]]
    return SweepPlan(
        name=name,
        question={**golden["question"], "tune": {}, "search": None},
        outputs="/nowhere",
        arms=tuple(Arm(arm) for arm in arms),
        variants={arm: Variant(arm, arm, {}, {}) for arm in arms},
        cells=tuple(Cell(arm, seed, f"{arm}/s{seed}") for arm in arms for seed in golden["question"]["seeds"]),
        facts={"metric": {"name": "m", "direction": golden["facts"]["metric"]["direction"]}},
    )


def _by(plan: SweepPlan, changes: Mapping[str, Any]) -> SweepPlan:
    """Return the plan with the rule of an earlier release, or with these changes of it."""
    until = plan.question["until"]
    return replace(
        plan, question={**plan.question, "until": {"first": until["first"], "most": until["most"]} | changes}
    )


def _against(one: Any, shipped: Shipped) -> bool:
    """Return whether a decision is false of the means that the values were drawn around."""
    first, second = (math.fsum(shipped.means[arm] for arm in side) for side in one.comparison.sides)
    gain = first - second if shipped.plan.facts["metric"]["direction"] == "max" else second - first
    margin = shipped.plan.question.get("margin") or 0.0
    false = {
        "better": gain <= 0,
        "worse": gain >= 0,
        "equivalent": abs(gain) >= margin,
        "not worse": gain <= -margin,
        "different": abs(gain) <= margin,
        "worse by a margin": gain >= -margin,
        "not better": gain >= margin,
    }
    return bool(false.get(str(one.outcome), False))


def main() -> None:
    """Run some of the simulations, or all."""
    tables: dict[str, Callable[[int], None]] = {
        "looks": looks,
        "errors": errors,
        "power": power,
        "inflation": inflation,
        "margin": margins,
        "claims": claims,
        "grown": grown,
        "groups": groups,
        "effort": effort,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="table", help=", ".join(tables))
    parser.add_argument("--sweeps", type=int, help="default 3,000; 1,000 for claims, 20 for effort")
    args = parser.parse_args()
    fewer = {"claims": 1_000, "effort": 20}
    for name in args.tables or tables:
        if name not in tables:
            parser.error(f"no table {name}; there are {', '.join(tables)}")
        print(f"\n{name}\n")
        tables[name](args.sweeps or fewer.get(name, 3_000))


if __name__ == "__main__":
    main()
