"""Simulate how often the intervals of compute multipliers cover the truth, and how often no multiplier is given.

    python benchmarks/ladder.py [--ladders 40] [--floors shared|own] [--noise 0.002 0.01 0.1] [--cases "same power" ...]

Two arms over four rungs, five seeds each, noise that both arms share in part. The laws of some cases are not of the
form that is fitted. Columns count ladders without a law, those whose multiplier is withheld, and the share of the
published multipliers whose interval covers the truth. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from blockyard.errors import UserError
from blockyard.report.stats.ladder import FARTHER, ArmLadder, Law, Points, ladder, multiplier

RUNGS = (1e12, 3e12, 1e13, 3e13)
NOISES = (0.002, 0.01, 0.1)
PLAIN = Law(1.5, 200.0, 0.2)
STEEP = Law(1.5, 400.0, 0.25)
BEND = 5e12  # FLOPs
SLOW = 0.05  # the power beyond the bend

Losses = Callable[[float], float]  # compute -> loss


class Case(NamedTuple):
    """Two arms. multiplier: compute -> the compute that the baseline needs for the loss of the arm, over its own"""

    baseline: Losses
    arm: Losses
    multiplier: Callable[[float], float]


def of_laws(base: Law, arm: Law) -> Case:
    """Return the case of two laws of the form that is fitted."""
    return Case(base.loss, arm.loss, lambda compute: multiplier(arm, base, compute))


def stops(compute: float) -> float:
    """Return the loss of an arm worth twice the compute of the baseline that learns nothing above 1e13 FLOPs."""
    return PLAIN.loss(2 * min(compute, 1e13))


def bends(compute: float) -> float:
    """Return the loss of a baseline whose power is smaller above the bend."""
    reducible = STEEP.loss(min(compute, BEND)) - STEEP.floor
    return STEEP.floor + reducible * max(compute / BEND, 1.0) ** -SLOW


def beyond_the_bend(compute: float) -> float:
    """Return the multiplier of an arm without the bend."""
    return BEND / compute * (compute / BEND) ** (STEEP.power / SLOW)


CASES = {
    "same power": of_laws(PLAIN, Law(1.5, 180.0, 0.2)),
    "gap grows": of_laws(PLAIN, Law(1.5, 400.0, 0.23)),
    "no difference": of_laws(PLAIN, PLAIN),
    "lower floor": of_laws(PLAIN, Law(1.45, 200.0, 0.2)),
    "power of 0.7": of_laws(Law(0.04, 5.3e7, 0.7), Law(0.04, 3.7e7, 0.7)),
    "the arm stops at 1e13": Case(PLAIN.loss, stops, lambda compute: 2 * min(1.0, 1e13 / compute)),
    "the baseline bends at 5e12": Case(bends, STEEP.loss, beyond_the_bend),
}


def runs(draw: np.random.Generator, base: Losses, arm: Losses, seeds: int, noise: float) -> dict[str, Points]:
    """Return losses of two arms; half of the variance of the noise is that of the seed, which both share."""
    shared = draw.normal(size=(seeds, len(RUNGS)))
    result = {}
    for name, loss in (("base", base), ("arm", arm)):
        of_arm = draw.normal(size=(seeds, len(RUNGS)))
        factor = np.exp(noise * (shared + of_arm) / np.sqrt(2))  # (seeds, rungs)
        losses = factor * [loss(compute) for compute in RUNGS]
        result[name] = {seed: list(zip(RUNGS, losses[seed].tolist(), strict=True)) for seed in range(seeds)}
    return result


def row(name: str, noise: float, ladders: int, floors: str) -> str:
    """Return the row of a case and a noise."""
    case = CASES[name]
    near_truth = case.multiplier(RUNGS[-1])
    far_truth = case.multiplier(FARTHER * RUNGS[-1])
    fitted: list[ArmLadder] = []
    for seed in range(ladders):
        drawn = runs(np.random.default_rng(seed), case.baseline, case.arm, 5, noise)
        try:
            fitted += [arm for arm in ladder(drawn, "base", floors).arms if arm.name == "arm"]
        except UserError:
            continue
    published = [arm for arm in fitted if arm.withheld is None]
    farther = [arm for arm in fitted if arm.farther_withheld is None]
    median = ""
    if published:
        median = f"{statistics.median(arm.multiplier for arm in published):.3g}"
    held_out_error = ""
    if fitted:
        errors = [abs(arm.held_out[0] / arm.held_out[1] - 1) for arm in fitted]
        held_out_error = f"{100 * statistics.median(errors):.1f} %"
    cells = [
        name,
        f"{100 * noise:g} %",
        f"{near_truth:.3g}",
        str(ladders - len(fitted)),
        str(len(fitted) - len(published)),
        f"{covered([arm.interval for arm in published], near_truth)} of {len(published)}",
        median,
        f"{covered([arm.farther_interval for arm in farther], far_truth)} of {len(farther)}",
        held_out_error,
    ]
    return f"| {' | '.join(cells)} |"


def covered(intervals: Sequence[tuple[float, float] | None], truth: float) -> int:
    """Return how many of the intervals cover the truth; a multiplier without an interval does not."""
    return sum(low <= truth <= high for low, high in filter(None, intervals))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladders", type=int, default=40)
    parser.add_argument("--floors", choices=("shared", "own"), default="shared", help="the E of the laws")
    parser.add_argument(
        "--noise", type=float, nargs="+", default=NOISES, help="standard deviation of the log of a loss"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    print(
        "| laws | noise | multiplier | no law | withheld | covered | median | covered at ten times | held-out error |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    for name in args.cases:
        for noise in args.noise:
            print(row(name, noise, args.ladders, args.floors), flush=True)


if __name__ == "__main__":
    main()
