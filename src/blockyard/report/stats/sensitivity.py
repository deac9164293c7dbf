"""The differences that a sweep can show before any cell has run: by its seeds, and by the size of its test set.

Source: power of the paired t test, and the smallest p of the exact test of signs (`verdict`); the standard error of a
share of n independent samples, sqrt(p (1 - p) / n), as in Miller 2024, Adding Error Bars to Evals (arXiv 2411.00640),
sec. 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from blockyard.report.stats.expectations import room_words
from blockyard.report.stats.metric_range import SHARE, best_value, metric_range
from blockyard.report.stats.paired import Values, finite, paired_difference
from blockyard.report.stats.resplit import inflation
from blockyard.report.stats.verdict import ALPHA, MIN_SEEDS, POWER, detectable_effect, min_seeds_exact
from blockyard.sweep.spec.expectation import Claim
from blockyard.sweep.spec.threshold import of_metric
from blockyard.sweep.stopping.rule import StoppingRule

_LEVEL = 0.9  # of a share that no finished run tells


@dataclass(frozen=True)
class SweepDesign:
    """The planned sweep. seeds: of each arm, at most; rule: by which it stops when it is decided, None if it does not

    compared: comparisons that are tested against zero and share the error rate
    test_size: samples of the test split, None where unknown
    values: of the cells that have finished: arm -> seed -> value
    resplit: test samples over training samples, where each seed has a split of its own
    """

    metric: str
    seeds: int
    compared: int
    rule: StoppingRule | None
    margin: float | None
    test_size: int | None
    values: Values
    resplit: float | None = None


def sensitivity(design: SweepDesign, baseline: str | None) -> Iterator[str]:
    """Yield what so many seeds, and so many test samples, can show, and where a margin is below that."""
    outcome = of_metric(design.metric)
    if design.compared and outcome and not design.rule:
        yield _by_signs(design, is_rate=outcome.kind == "success")
    elif design.compared and design.seeds >= MIN_SEEDS:
        yield _by_seeds(design, _deviation(design.values, baseline))
    if design.resplit is None and design.test_size and metric_range(design.metric, ()) == SHARE and outcome is None:
        yield from _by_samples(design, design.test_size)


def no_room(design: SweepDesign, claims: Sequence[Claim], direction: str) -> list[str]:
    """Return why no arm can be better by the margin, for each claim with `>` for which finished runs show it."""
    if not design.margin:
        return []
    limits = metric_range(design.metric, ())
    if limits is not None and design.margin >= limits[1] - limits[0]:
        return [
            f"no two arms differ by {design.margin:g}: {design.metric} is a share, between {limits[0]:g} and "
            f"{limits[1]:g}"
        ]
    scores = [value for by_seed in design.values.values() for value in finite(by_seed).values()]
    end = best_value(design.metric, direction, scores)
    lines = []
    for claim in claims:
        if claim.other in design.values:
            sentence = room_words(claim, design.values, direction, design.margin, end)
            if sentence:
                lines.append(sentence)
    return list(dict.fromkeys(lines))


def _by_signs(design: SweepDesign, *, is_rate: bool) -> str:
    """Return from how many seeds on the exact test of signs can decide, and which rates so many seeds tell apart."""
    fewest = min_seeds_exact(design.compared)
    comparisons = f"{design.compared} comparison{'s' * (design.compared != 1)}"
    if design.seeds < fewest:
        return (
            f"{design.seeds} seeds cannot decide: outcomes of whole runs are compared by an exact test of signs, which "
            f"takes {fewest} seeds that all go one way, with {comparisons}"
        )
    text = (
        f"{design.seeds} seeds decide, by an exact test of signs, where one arm is ahead on {fewest} or more and "
        f"behind on none, with {comparisons}"
    )
    if is_rate:
        rate = _weaker_rate(design.seeds, fewest)
        text += f": in {100 * POWER:.0f} % of sweeps where one arm always succeeds and the other in {rate:.0%} of runs"
    return text


def _weaker_rate(seeds: int, fewest: int) -> float:
    """Return the largest rate of success that differs from 1 on so many seeds with the power of POWER."""
    from scipy import optimize, stats

    def missed(rate: float) -> float:
        return float(stats.binom.sf(fewest - 1, seeds, 1 - rate)) - POWER

    return float(optimize.brentq(missed, 0.0, 1.0))


def _by_seeds(design: SweepDesign, deviation: float | None) -> str:
    if design.rule:
        # If all seeds show it without any error.
        effect = design.rule.radius(design.seeds, design.seeds - 1.0, ALPHA / max(1, design.compared))
        how = "at most decide"
    else:
        effect = detectable_effect(design.seeds, ALPHA / max(1, design.compared))
        effect *= math.sqrt(inflation(design.seeds, design.resplit or 0.0))
        how = f"show, in {100 * POWER:.0f} % of sweeps,"
    in_units = f", here about {effect * deviation:.2g} (from the cells that have finished)" if deviation else ""
    comparisons = f"{design.compared} comparison{'s' * (design.compared != 1)}"
    split = ", which have splits of their own that overlap," if design.resplit is not None else ""
    return (
        f"{design.seeds} seeds{split} {how} a difference of {effect:.2g} standard deviations of the paired differences"
        f"{in_units}, with {comparisons}"
    )


def _deviation(values: Values, baseline: str | None) -> float | None:
    """Return the median standard deviation of the paired differences of the arms with three common seeds or more."""
    clean = {arm: finite(by_seed) for arm, by_seed in values.items()}
    gaps = [paired_difference(own, clean.get(str(baseline), {})) for arm, own in clean.items() if arm != baseline]
    deviations = sorted(gap.deviation for gap in gaps if gap.n >= MIN_SEEDS and gap.deviation is not None)
    if deviations:
        return deviations[len(deviations) // 2]
    return None


def _by_samples(design: SweepDesign, size: int) -> Iterator[str]:
    measured = [value for by_seed in design.values.values() for value in finite(by_seed).values()]
    level = math.fsum(measured) / len(measured) if measured else _LEVEL
    if not 0 < level < 1:
        level = _LEVEL
    yield (
        f"{size:,} test samples: one is {1 / size:.2g} of {design.metric}; by the choice of the samples alone two arms "
        f"near {level:.2g} differ by up to {samples_noise(level, size):.2g}, if they err on different ones"
    )
    if design.margin is not None and design.margin < 1 / size:
        yield f"the margin {design.margin:g} is less than one test sample ({1 / size:.2g})"


def samples_noise(level: float, size: int) -> float:
    """Return how far two arms near a share differ in 95 % of test sets of a size, if they err on different samples."""
    return 1.96 * math.sqrt(2 * level * (1 - level) / size)
