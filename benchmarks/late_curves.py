"""Simulate how often the warning that curves still improve is given, by the loss in training alone.

    python benchmarks/late_curves.py [--sweeps 400]

Each run has one evaluation, so that its train/loss speaks. Curves fall by 1 over the training, with independent noise
on every row of metrics.csv. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

from blockyard.report.arms.review import still_improving
from blockyard.report.load.document import CurveRow

SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a straight line to the end": lambda share: 1 - share,
    "power law, share^-0.3": lambda share: (share**-0.3 - 1) / 2,
    "converged in the middle": lambda share: np.maximum(0.0, 1 - 2 * share),
    "converged, exp(-10 share)": lambda share: np.exp(-10 * share),
    "never learns": lambda share: 0 * share,
}
ROWS = (6, 10, 16, 50, 200)
NOISES = (0.01, 0.05)
SEEDS = (1, 5)


def curve(seed: int, losses: np.ndarray, evaluations: int = 1) -> CurveRow:
    """Return the curve of a run, whose loss on validation is that in training."""
    count = len(losses)
    judged: list[float | None] = [None] * count
    for number in range(evaluations):
        index = round((number + 1) * count / evaluations) - 1
        judged[index] = float(losses[index])
    metrics: dict[str, list[float | None]] = {"train/loss": [float(loss) for loss in losses], "val/loss": judged}
    steps = [50 * (index + 1) for index in range(count)]
    return CurveRow(
        arm="arm", seed=seed, run="", setting={}, step=steps, samples=[], flops=[], seconds=[], metrics=metrics
    )


def warned(shape: str, rows: int, noise: float, seeds: int, sweeps: int) -> float:
    """Return the share of sweeps with the warning."""
    draw = np.random.default_rng(0)
    losses = SHAPES[shape](np.arange(1, rows + 1) / rows)
    count = 0
    for _ in range(sweeps):
        curves = [curve(seed, losses + noise * draw.normal(size=rows)) for seed in range(seeds)]
        count += any(still_improving(curves, "test/loss", "min"))
    return count / sweeps


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=400)
    sweeps = parser.parse_args().sweeps
    columns = [(noise, seeds) for noise in NOISES for seeds in SEEDS]
    heads = [f"noise {noise:g}, {seeds} seed{'s' * (seeds > 1)}" for noise, seeds in columns]
    print(f"| train/loss | rows | {' | '.join(heads)} |")
    print("|---|---" + "|---" * len(columns) + "|")
    for shape in SHAPES:
        for rows in ROWS:
            shares = [f"{100 * warned(shape, rows, noise, seeds, sweeps):.1f} %" for noise, seeds in columns]
            print(f"| {shape} | {rows} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
