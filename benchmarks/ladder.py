"""How often the intervals of compute multipliers cover the truth, on simulated ladders.

    python benchmarks/ladder.py [--ladders 100] [--floors shared|own] [--noise 0.01]

Two arms of known laws over four rungs, five seeds each, noise that both arms share in part. The last column is the
share of ladders of which no law was told, because it missed a rung by more than its runs explain. The answer is a
Markdown table on standard output.
"""

from __future__ import annotations

import argparse

import numpy as np

from blockyard.errors import UserError
from blockyard.report.stats.ladder import FARTHER, Law, Points, ladder, multiplier

RUNGS = (1e12, 3e12, 1e13, 3e13)
CASES = {
    "same power": (Law(1.5, 200.0, 0.2), Law(1.5, 180.0, 0.2)),
    "gap grows": (Law(1.5, 200.0, 0.2), Law(1.5, 400.0, 0.23)),
    "no difference": (Law(1.5, 200.0, 0.2), Law(1.5, 200.0, 0.2)),
    "lower floor": (Law(1.5, 200.0, 0.2), Law(1.45, 200.0, 0.2)),
    "steep": (Law(0.04, 5.3e7, 0.7), Law(0.04, 3.7e7, 0.7)),
}


def runs(draw: np.random.Generator, base: Law, arm: Law, seeds: int, noise: float) -> dict[str, Points]:
    """Losses of two arms; half of the variance of the noise is that of the seed, which both share."""
    shared = draw.normal(size=(seeds, len(RUNGS)))
    result = {}
    for name, law in (("base", base), ("arm", arm)):
        own = draw.normal(size=(seeds, len(RUNGS)))
        factor = np.exp(noise * (shared + own) / np.sqrt(2))
        result[name] = {
            seed: [(compute, law.loss(compute) * float(factor[seed, rung])) for rung, compute in enumerate(RUNGS)]
            for seed in range(seeds)
        }
    return result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladders", type=int, default=100)
    parser.add_argument("--floors", choices=("shared", "own"), default="shared", help="the E of the laws")
    parser.add_argument("--noise", type=float, default=0.01, help="standard deviation of the log of a loss")
    args = parser.parse_args()
    print(
        "| laws | multiplier | covered at the largest rung | covered at ten times | held-out error, median | not told |"
    )
    print("|---|---|---|---|---|---|")
    for name, (base, arm) in CASES.items():
        top = RUNGS[-1]
        truth, farther = multiplier(arm, base, top), multiplier(arm, base, FARTHER * top)
        near, far, errors, refused = [], [], [], 0
        for seed in range(args.ladders):
            try:
                arms = ladder(runs(np.random.default_rng(seed), base, arm, 5, args.noise), "base", args.floors).arms
            except UserError:
                refused += 1
                continue
            fitted = arms[1]
            assert fitted.interval is not None
            assert fitted.farther_interval is not None
            near.append(fitted.interval[0] <= truth <= fitted.interval[1])
            far.append(fitted.farther_interval[0] <= farther <= fitted.farther_interval[1])
            errors.append(abs(fitted.held_out[0] / fitted.held_out[1] - 1))
        shown = f"{100 * np.mean(near):.0f} % | {100 * np.mean(far):.0f} % | {100 * np.median(errors):.1f} %"
        shown += f" | {100 * refused / args.ladders:.0f} %"
        print(f"| {name} | {truth:.2f} | {shown} |")


if __name__ == "__main__":
    main()
