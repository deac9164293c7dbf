"""Simulate how often intervals for new texts cover the truth where texts have very different lengths.

    python benchmarks/texts.py [--sweeps 2000] [--deviation 1.0]

Differences of two arms on each token of texts whose lengths are lognormal, of three seeds: the texts differ, the seeds
may, and so does each text from seed to seed. Beside the intervals that comparisons have stand those of the linearised
variance of a ratio with D - 1 degrees of freedom. The answer is a Markdown table on standard output.
"""

from __future__ import annotations

import argparse

import numpy as np

from blockyard.report.samples.scores import RunScores, effective_size, gaps
from blockyard.report.stats.crossed import crossed_difference

SEEDS = 3
TEXTS = (4, 12, 40)
LENGTH = 4.0  # mean of the log of a length in tokens
TEXT_BY_SEED = 0.3  # standard deviation, that of texts is 1


def coverage(sweeps: int, texts: int, over: str, *, of_seed: float, deviation: float = 1.0) -> tuple[float, float]:
    """Return the share of intervals that hold the true difference, 0: those of comparisons, and linearised ones.

    of_seed: the standard deviation of seeds, that of texts is 1; deviation: of the log of a length
    """
    draw = np.random.default_rng(1)
    covered = []
    linearised = []
    for _ in range(sweeps):
        count = np.exp(draw.normal(LENGTH, deviation, size=texts)).round() + 1
        mean = draw.normal(size=(1, texts)) + of_seed * draw.normal(size=(SEEDS, 1))
        mean = mean + TEXT_BY_SEED * draw.normal(size=(SEEDS, texts))
        sums = count * mean + np.sqrt(count) * draw.normal(size=(SEEDS, texts))
        runs = _runs(sums, count)
        values = gaps(runs, _runs(np.zeros_like(sums), count))
        covered.append(_holds_zero(values, over, effective_size(runs)))
        share = count / count.mean()
        ratio = sums.sum() / (SEEDS * count.sum())
        linearised.append(_holds_zero(sums / count.mean() - ratio * (share - 1), over, None))
    return float(np.mean(covered)), float(np.mean(linearised))


def _runs(sums: np.ndarray, count: np.ndarray) -> dict[int, RunScores]:
    numbers = np.arange(len(count))
    return {seed: RunScores(numbers, count, row, count, documents=True) for seed, row in enumerate(sums)}


def _holds_zero(values: np.ndarray, over: str, effective: float | None) -> bool:
    interval = crossed_difference(values, over, effective).interval
    assert interval is not None
    low, high = interval
    return low <= 0 <= high


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=2_000)
    parser.add_argument("--deviation", type=float, default=1.0, help="standard deviation of the log of a length")
    args = parser.parse_args()
    print("| texts | over | seeds differ | covered | linearised, D - 1 degrees of freedom |")
    print("|---|---|---|---|---|")
    for texts in TEXTS:
        for over, of_seed in (("samples", 0.0), ("both", 0.0), ("both", 0.3)):
            ours, plain = coverage(args.sweeps, texts, over, of_seed=of_seed, deviation=args.deviation)
            print(
                f"| {texts} | {over} | {'yes' if of_seed else 'no'} | {100 * ours:.1f} % | {100 * plain:.1f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
