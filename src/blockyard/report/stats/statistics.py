"""The figures of a family of arms, judged together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from blockyard.report.stats.intervals import Mean, mean_of
from blockyard.report.stats.paired import Difference, common, difference
from blockyard.report.stats.verdict import BASELINE, corrected, verdict, words

Values = Mapping[str, Mapping[int, float]]  # arm -> seed -> figure


@dataclass(frozen=True)
class Judged:
    """One arm: its mean, its difference to the baseline (None for the baseline, and without one), and the verdict."""

    mean: Mean
    difference: Difference | None
    verdict: str
    words: str


def finite(values: Mapping[int, float | None]) -> dict[int, float]:
    """The figures that are numbers, by seed."""
    return {seed: float(v) for seed, v in sorted(values.items()) if v is not None and math.isfinite(v)}


def judge(
    values: Values, baseline: str | None, direction: str, *, interesting: float | None = None
) -> dict[str, Judged]:
    """Every arm against the baseline.

    values: arm -> seed -> figure; what is no number is left out
    direction: "max" where more is better, else "min"
    interesting: the smallest difference worth knowing, for the advice on seeds
    """
    clean = {arm: finite(figures) for arm, figures in values.items()}
    others = [arm for arm in clean if arm != baseline] if baseline is not None else []
    gaps = corrected({arm: between(clean[arm], clean[baseline]) for arm in others}) if baseline is not None else {}
    judged = {}
    for arm, figures in clean.items():
        mean = mean_of(list(figures.values()))
        if arm not in gaps:
            said = "The baseline." if arm == baseline else "There is no baseline to compare with."
            judged[arm] = Judged(mean, None, BASELINE, said)
            continue
        found = gaps[arm]
        judged[arm] = Judged(
            mean,
            found,
            verdict(found, direction),
            words(found, direction, str(baseline), len(others), interesting),
        )
    return judged


def between(arm: Mapping[int, float], other: Mapping[int, float]) -> Difference:
    """The difference of two arms over the seeds that both have."""
    seeds = common(arm, other)
    return difference([arm[seed] for seed in seeds], [other[seed] for seed in seeds])
