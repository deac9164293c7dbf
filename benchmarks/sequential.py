"""How often sweeps that stop when they are decided are wrong, and how many cells they take: simulated sweeps.

    python benchmarks/sequential.py errors     no effect: the share of sweeps with any false verdict
    python benchmarks/sequential.py power      seeds to a verdict, against a t test with as many as give equal power
    python benchmarks/sequential.py margin     a true difference as large as the margin: false equivalence; and none
    python benchmarks/sequential.py claims     `~`, `>=` and `>` by the true difference in margins: how clauses end
    python benchmarks/sequential.py groups     the limits of `report.stats.sequential.two_groups`

A sweep looks after every seed from 2 to 20. Arms share the baseline's noise as in a real sweep; decided arms get no
more seeds. The verdicts are those of `sweep.stopping`, computed for all sweeps at once; the first 40 are checked
against it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from blockyard.sweep.stopping.decisions import ArmComparison, judge
from blockyard.sweep.stopping.evidence import ALPHA, PRIOR

MOST = 20
NOISES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "heavy (t, 2 degrees)": lambda draw, shape: draw.standard_t(2, size=shape),
    "quantised (steps of 1.25 sd)": lambda draw, shape: np.round(0.8 * draw.normal(size=shape)),
    "skewed (exponential)": lambda draw, shape: draw.exponential(size=shape) - 1,
}


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


def ends(gaps: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """The confidence sequences after each seed: (sweeps, arms, n) -> 2 x the same."""
    n = np.arange(1, gaps.shape[-1] + 1)
    mean = np.cumsum(gaps, -1) / n
    squares = np.maximum(np.cumsum(gaps**2, -1) - n * mean**2, 0.0)
    spread = 1 + n * PRIOR
    ratio = np.exp(2 / n * (np.log(1 / alpha) + 0.5 * np.log(spread)))
    with np.errstate(divide="ignore", invalid="ignore"):
        radius = np.where(ratio < spread, np.sqrt(squares / n * (ratio - 1) / (1 - ratio / spread)), np.inf)
    same = (np.abs(gaps - gaps[..., :1]) < 1e-9).cumprod(-1).astype(bool)
    radius = np.where(same, np.inf, radius)
    low, high = np.maximum.accumulate(mean - radius, -1), np.minimum.accumulate(mean + radius, -1)
    return low, high


def run_rounds(gaps: np.ndarray, margin: float | None, first: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Stop each arm when it is decided. (sweeps, arms, n) -> outcome (1, -1: differs; 2: equivalent; 0) and seeds."""
    sweeps, arms, most = gaps.shape
    largest = np.maximum.accumulate(log_es(gaps), -1)
    means = np.cumsum(gaps, -1)
    low, high = ends(gaps, ALPHA / arms)
    outcome, taken = np.zeros((sweeps, arms), int), np.full((sweeps, arms), most)
    seen = np.zeros((sweeps, arms))  # the largest log e of the seeds that each arm got
    for n in range(first, most + 1):
        going = outcome == 0
        seen = np.where(going, largest[..., n - 1], seen)
        order = np.argsort(-seen, axis=1)
        ranked = np.take_along_axis(seen, order, 1) >= np.log((arms - np.arange(arms)) / ALPHA)
        rejected = np.zeros_like(going)
        np.put_along_axis(rejected, order, np.logical_and.accumulate(ranked, 1), 1)
        new = np.where(rejected, np.sign(means[..., n - 1]).astype(int), 0)
        if margin is not None:
            new = np.where((low[..., n - 1] > -margin) & (high[..., n - 1] < margin), 2, new)
        taken = np.where(going & (new != 0), n, taken)
        outcome = np.where(going, new, outcome)
    return outcome, taken


def check(gaps: np.ndarray, outcome: np.ndarray, taken: np.ndarray, margin: float | None) -> None:
    """Compare with the product's own judgement of the seeds that each arm got."""
    names = {"better": 1, "worse": -1, "equivalent": 2, None: 0}
    for sweep in range(min(40, len(gaps))):
        arms = [str(k) for k in range(gaps.shape[1])]
        values = {"base": dict.fromkeys(range(gaps.shape[-1]), 0.0)}
        values |= {arm: dict(enumerate(gaps[sweep, k, : taken[sweep, k]])) for k, arm in enumerate(arms)}
        asked = [ArmComparison(arm, ((arm,), ("base",))) for arm in arms]
        found = judge(asked, values, range(gaps.shape[-1]), "max", margin)
        assert [names[one.outcome] for one in found] == list(outcome[sweep]), (sweep, found)


def drawn(kind: str, sweeps: int, arms: int, effects: np.ndarray | float = 0.0, seed: int = 0) -> np.ndarray:
    """Differences to a baseline whose noise all arms share, with standard deviation 1 where the noise has one."""
    draw = np.random.default_rng(seed)
    noise = NOISES[kind](draw, (sweeps, arms + 1, MOST))
    if kind.startswith("quantised"):
        return noise[:, 1:] - noise[:, :1] + np.asarray(effects)
    scale = math.sqrt(2) if not kind.startswith("skewed") else 1.0
    base = noise[:, :1] if not kind.startswith("skewed") else 0.0  # a difference of two exponentials is symmetric
    return (noise[:, 1:] - base) / scale + np.asarray(effects)


def errors(sweeps: int) -> None:
    """Print the share of sweeps with any false verdict."""
    print("| differences | 1 arm | 2 arms | 4 arms | 8 arms |")
    print("|---|---|---|---|---|")
    for kind in NOISES:
        rates = []
        for arms in (1, 2, 4, 8):
            gaps = drawn(kind, sweeps, arms)
            outcome, taken = run_rounds(gaps, None)
            check(gaps, outcome, taken, None)
            rates.append((outcome != 0).any(1).mean())
        print(f"| {kind} | {' | '.join(f'{rate:.1%}' for rate in rates)} |")


def power(sweeps: int) -> None:
    """Print the mean seeds to a verdict, its power, and the seeds of a fixed design of equal power."""
    from blockyard.report.stats.verdict import t_test_power

    print("| effect (d) | decided within 20 | mean seeds | fixed design of equal power, at most 99 % | cells saved |")
    print("|---|---|---|---|---|")
    for effect in (0.5, 1.0, 1.5, 2.0, 3.0, 5.0):
        gaps = drawn("normal", sweeps, 1, effect)
        outcome, taken = run_rounds(gaps, None, first=3)
        check(gaps, outcome, taken, None)
        right = (outcome == 1).mean()
        fixed = next(n for n in range(3, 200) if t_test_power(effect, n, ALPHA) >= min(right, 0.99))
        print(f"| {effect} | {right:.1%} | {taken.mean():.1f} | {fixed} | {1 - taken.mean() / fixed:.0%} |")


def margins(sweeps: int) -> None:
    """Print how often arms are called equivalent, or any verdict is false, by the true difference in margins."""
    print("| true difference, of the margin | margin (sd) | arms | equivalent | better or worse | mean seeds |")
    print("|---|---|---|---|---|---|")
    for share in (0.0, 1.0):
        for margin in (1.0, 2.0):
            for arms in (1, 4):
                gaps = drawn("normal", sweeps, arms, share * margin)
                outcome, taken = run_rounds(gaps, margin, first=3)
                check(gaps, outcome, taken, margin)
                any_of = [(outcome == 2).any(1).mean(), (np.abs(outcome) == 1).any(1).mean()]
                if share == 0:
                    any_of[0] = (outcome == 2).mean()
                print(f"| {share:g} | {margin:g} | {arms} | {any_of[0]:.1%} | {any_of[1]:.1%} | {taken.mean():.1f} |")


def claims(sweeps: int) -> None:
    """Print how claims with a margin end, by the true difference in margins.

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
                ends = []
                for own in factor * gaps:
                    values = {"base": dict.fromkeys(range(MOST), 0.0), "a": dict(enumerate(own.tolist()))}
                    ends.append(judge([clause], values, range(MOST), "max", margin)[0].verdict)
                cells += [ends.count("supported") / sweeps, ends.count("contradicted") / sweeps]
            print(f"| {share:g} | {margin:g} | {' | '.join(f'{cell:.1%}' for cell in cells)} |")


def groups(sweeps: int) -> None:
    """Print the share of variance that the best cut explains, which 1 % of normal samples exceed."""
    draw = np.random.default_rng(0)
    for n in (6, 8, 10, 12, 16, 20):
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


def main() -> None:
    """Run one of the simulations."""
    tables = {"errors": errors, "power": power, "margin": margins, "claims": claims, "groups": groups}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=tables)
    parser.add_argument("--sweeps", type=int, default=3_000)
    args = parser.parse_args()
    tables[args.table](args.sweeps)


if __name__ == "__main__":
    main()
