"""How often sweeps over splits of one data set are wrong: simulated sweeps of two classifiers that are equally good.

    python benchmarks/resplit.py

Two classes differ in the mean of 2 x FEATURES features, each by the same. One arm sees the first half of the features,
the other one the second half, so that by symmetry both have the same expected error for any number of training samples.
Every sweep draws a data set, splits it by each seed, trains both (linear discriminants, by ridge regression) and
compares them: as if splits were independent, and by `report.stats.resplit`. The last column is how often the latter
finds a difference where the second arm has weaker features.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import stats

from blockyard.report.stats.resplit import split_difference

FEATURES = 10
SHIFT, WEAKER = 0.35, 0.15  # between the means of the classes, in standard deviations: of each feature


def errors(
    draw: np.random.Generator, samples: int, seeds: int, share: float, shifts: tuple[float, float]
) -> np.ndarray:
    """The test errors of both arms on each split of one data set: (2, seeds)."""
    sign = draw.choice([-1.0, 1.0], size=samples)
    shift = np.repeat(shifts, FEATURES)
    inputs = draw.normal(size=(samples, 2 * FEATURES)) + sign[:, None] * shift / 2
    test_size, wrong = round(share * samples), np.empty((2, seeds))
    for seed in range(seeds):
        order = draw.permutation(samples)
        test, train = order[:test_size], order[test_size:]
        for arm in range(2):
            own = inputs[:, arm * FEATURES : (arm + 1) * FEATURES]
            gram = own[train].T @ own[train] + np.eye(FEATURES)
            weights = np.linalg.solve(gram, own[train].T @ sign[train])
            wrong[arm, seed] = np.mean(np.sign(own[test] @ weights) != sign[test])
    return wrong


def rates(sweeps: int, samples: int, seeds: int, share: float, shifts: tuple[float, float]) -> tuple[float, float]:
    """The shares of sweeps in which a difference is found: by the plain paired t test, and corrected."""
    draw = np.random.default_rng(0)
    plain, corrected, ratio = 0, 0, share / (1 - share)
    for _ in range(sweeps):
        first, second = errors(draw, samples, seeds, share, shifts)
        naive = float(stats.ttest_rel(first, second).pvalue)
        own = split_difference(list(first - second), ratio).p
        plain += naive <= 0.05
        corrected += own is not None and own <= 0.05
    return plain / sweeps, corrected / sweeps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=1_000)
    sweeps = parser.parse_args().sweeps
    print("| samples | test share | seeds | plain t test | corrected | finds weaker features |")
    print("|---|---|---|---|---|---|")
    for samples, share in ((200, 0.2), (1_000, 0.2), (1_000, 0.4)):
        for seeds in (5, 10, 20):
            plain, corrected = rates(sweeps, samples, seeds, share, (SHIFT, SHIFT))
            _, power = rates(sweeps, samples, seeds, share, (SHIFT, WEAKER))
            print(f"| {samples:,} | {share:g} | {seeds} | {plain:.1%} | {corrected:.1%} | {power:.1%} |", flush=True)


if __name__ == "__main__":
    main()
