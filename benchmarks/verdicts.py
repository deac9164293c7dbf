"""Simulate how often verdicts on expectations are wrong, with a fixed number of seeds and with looks.

    python benchmarks/verdicts.py clauses      several clauses against a margin: the whole falsely contradicted
    python benchmarks/verdicts.py diverged     runs that diverge: three rules for them, false verdicts and power
    python benchmarks/verdicts.py looks        the same until it is decided, with a look after every seed to 20

Every verdict is that of `report.stats.expectations.evaluate`, or of `sweep.stopping.decisions.judge`. Differences are
normal with a standard deviation of 1.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from blockyard.report.stats.expectations import evaluate
from blockyard.sweep.stopping.decisions import comparisons, judge

MARGIN = 1.0  # standard deviations of the differences
SEEDS = 8
MOST = 20  # seeds of a sweep that stops when it is decided
Runs = dict[str, dict[int, float]]


def clauses(sweeps: int) -> None:
    """Print how often a whole expectation is contradicted although each of its clauses is true."""
    kinds = {
        "`a > b`, better by the margin": (">", MARGIN),
        "`a ~ b`, 0.99 of the margin": ("~", 0.99 * MARGIN),
        "`a >= b`, worse by 0.99 of the margin": (">=", -0.99 * MARGIN),
        "`a > b` without a margin, better by 0.01": (">", 0.01),
    }
    print("| clauses | 1 clause | 3 | 8 |")
    print("|---|---|---|---|")
    for kind, (sign, effect) in kinds.items():
        margin = None if "without" in kind else MARGIN
        rates = []
        for count in (1, 3, 8):
            rates.append(_contradicted(sweeps, [sign] * count, [effect] * count, margin))
        print(f"| {kind} | {' | '.join(f'{rate:.1%}' for rate in rates)} |", flush=True)
    rates = []
    for count in (1, 3, 8):
        signs = [(">", "~", ">=")[number % 3] for number in range(count)]
        effects = [(MARGIN, 0.99 * MARGIN, -0.99 * MARGIN)[number % 3] for number in range(count)]
        rates.append(_contradicted(sweeps, signs, effects, MARGIN))
    print(f"| `>`, `~` and `>=` of these in turn | {' | '.join(f'{rate:.1%}' for rate in rates)} |")


def _contradicted(sweeps: int, signs: list[str], effects: list[float], margin: float | None) -> float:
    """Return the share of sweeps whose expectation of clauses about arms a0, a1, ... and b is contradicted."""
    draw = np.random.default_rng(0)
    text = " and ".join(f"a{number} {sign} b" for number, sign in enumerate(signs))
    wrong = 0
    for _ in range(sweeps):
        noise = draw.normal(scale=math.sqrt(0.5), size=(len(signs) + 1, SEEDS))
        runs = {"b": _by_seed(100 + noise[-1])}
        for number, effect in enumerate(effects):
            runs[f"a{number}"] = _by_seed(100 + effect + noise[number])
        wrong += evaluate(text, runs, "max", margin=margin).verdict == "contradicted"
    return wrong / sweeps


# name, effect of the runs that end, how often runs of a and b diverge
SCENES = (
    ("no difference, none diverges", 0.0, 0.0, 0.0),
    ("no difference, each diverges in 20 %", 0.0, 0.2, 0.2),
    ("no difference, each diverges in 50 %", 0.0, 0.5, 0.5),
    ("a is better by 2 where it ends, and diverges in 50 %", 2.0, 0.5, 0.0),
    ("a is better by 5 where it ends, and diverges in 50 %", 5.0, 0.5, 0.0),
    ("a is better by 2, and diverges in 10 %", 2.0, 0.1, 0.0),
    ("a is better by 2, b diverges in 20 %", 2.0, 0.0, 0.2),
    ("no difference where they end, b diverges in 80 %", 0.0, 0.0, 0.8),
    ("b always diverges", 0.0, 0.0, 1.0),
)


def diverged(sweeps: int) -> None:
    """Print how `a > b` ends by three rules: the runs that are left, order with the worst rank, and no verdict.

    In the first five scenes a is ahead on no more than half of the seeds, so that "supported" is false there.
    """
    print("| runs | seeds | left: supported | contradicted | order: supported | contradicted | none: supported |")
    print("|---|---|---|---|---|---|---|")
    for scene, effect, lost_a, lost_b in SCENES:
        for seeds in (5, 10):
            draw = np.random.default_rng(0)
            left: list[str] = []
            order: list[str] = []
            refused: list[str] = []
            for _ in range(sweeps):
                runs = _drawn(draw, seeds, effect, lost_a, lost_b)
                ended = {arm: {seed: v for seed, v in own.items() if math.isfinite(v)} for arm, own in runs.items()}
                whole = ended == runs
                left.append(evaluate("a > b", ended, "max").verdict)
                order.append(left[-1] if whole else evaluate("a > b", runs, "max").verdict)
                refused.append(left[-1] if whole else "undecided")
            cells = [_share(left, "supported"), _share(left, "contradicted")]
            cells += [_share(order, "supported"), _share(order, "contradicted"), _share(refused, "supported")]
            print(f"| {scene} | {seeds} | {' | '.join(cells)} |", flush=True)


def looks(sweeps: int) -> None:
    """Print how `a > b` ends until it is decided, by order from the first run on that diverges."""
    print("| runs | supported | contradicted |")
    print("|---|---|---|")
    for scene, effect, lost_a, lost_b in SCENES:
        draw = np.random.default_rng(0)
        ends: list[str] = []
        for _ in range(sweeps):
            runs = _drawn(draw, MOST, effect, lost_a, lost_b)
            [one] = judge(comparisons("a > b", list(runs), None), runs, range(MOST), "max", None)
            ends.append(one.verdict or "undecided")
        print(f"| {scene} | {_share(ends, 'supported')} | {_share(ends, 'contradicted')} |", flush=True)


def _drawn(draw: np.random.Generator, seeds: int, effect: float, lost_a: float, lost_b: float) -> Runs:
    noise = draw.normal(scale=math.sqrt(0.5), size=(2, seeds))
    lost = draw.random((2, seeds)) < np.array([[lost_a], [lost_b]])
    noise[0] += effect
    runs = np.where(lost, math.nan, 100 + noise)
    return {"a": _by_seed(runs[0]), "b": _by_seed(runs[1])}


def _by_seed(values: np.ndarray) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


def _share(verdicts: list[str], verdict: str) -> str:
    return f"{verdicts.count(verdict) / len(verdicts):.1%}"


def main() -> None:
    """Run one of the simulations."""
    tables = {"clauses": clauses, "diverged": diverged, "looks": looks}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=tables)
    parser.add_argument("--sweeps", type=int, default=2_000)
    args = parser.parse_args()
    tables[args.table](args.sweeps)


if __name__ == "__main__":
    main()
