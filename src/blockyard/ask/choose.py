"""The choices that fill the hours: how many steps and seeds, and the smallest difference that matters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blockyard.errors import UserError
from blockyard.report.stats.metric_range import SHARE, metric_range
from blockyard.report.stats.verdict import ALPHA
from blockyard.sweep.execution.estimate import format_duration
from blockyard.sweep.stopping.forecast import PossibleEnds, forecast
from blockyard.sweep.stopping.rule import StoppingRule

FEWEST_SEEDS = 5
MOST_SEEDS = 20
FIRST_SEEDS = 3
FEWEST_STEPS = 20
ENOUGH_STEPS = 300  # the recipe's steps are cut to these, or to an eighth of them, whichever are fewer
SHORTEST = 8
USED = 0.9  # of the hours; measuring takes about a tenth
NICE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)  # first digits of a margin


@dataclass(frozen=True)
class SweepLength:
    """The length of a sweep. steps: of each run; seeds: of each arm, at most; seconds: of all runs, at most"""

    steps: int
    seeds: int
    seconds: float


@dataclass(frozen=True)
class Resolution:
    """The differences that a sweep can decide.

    deviation: of the paired differences between arms, estimated
    smallest: the smallest difference from zero that all seeds decide, if they show it
    margin: arms that differ by less count as equal
    """

    deviation: float
    smallest: float
    margin: float


def choose_length(
    seconds_of: Callable[[int], Sequence[float]],
    total: int,
    parallel: int,
    hours: float,
    *,
    shortest: int | None = None,
) -> SweepLength:
    """Return the steps and seeds that fit into the hours: as many of the recipe's steps as five seeds leave room for.

    seconds_of: returns the seconds of a run of each arm by its number of steps
    total: steps of the recipe
    parallel: runs at a time
    shortest: the fewest steps; None is an eighth of the recipe's, or 300
    Raises UserError where the hours are too short for five seeds of the fewest steps.
    """
    budget = USED * hours * 3600
    if shortest is None:
        shortest = min(total, max(FEWEST_STEPS, min(ENOUGH_STEPS, math.ceil(total / SHORTEST))))
    times = seconds_of(shortest)
    needed = _seconds(times, FEWEST_SEEDS, parallel)
    if needed > budget:
        enough = _rounded_up(needed / USED / 3600)
        raise _too_few(
            hours,
            f"{len(times)} arms x {FEWEST_SEEDS} seeds x {shortest:,} steps, the fewest that can tell something, take "
            f"about {format_duration(needed)} on this machine with {parallel} in parallel; hours={enough:g} would do, "
            "and so would fewer arms, data.train_size=N or a smaller model",
        )
    steps = total
    if _seconds(seconds_of(total), FEWEST_SEEDS, parallel) > budget:
        steps = _longest(seconds_of, shortest, total, parallel, budget)
    times = seconds_of(steps)
    seeds = FEWEST_SEEDS
    while seeds < MOST_SEEDS and _seconds(times, seeds + 1, parallel) <= budget:
        seeds += 1
    return SweepLength(steps, seeds, _seconds(times, seeds, parallel))


def _longest(seconds_of: Callable[[int], Sequence[float]], low: int, high: int, parallel: int, budget: float) -> int:
    """Return the most steps from `low` on with which five seeds fit, by halving."""
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        if _seconds(seconds_of(middle), FEWEST_SEEDS, parallel) <= budget:
            low = middle
        else:
            high = middle
    return low


def _seconds(times: Sequence[float], seeds: int, parallel: int) -> float:
    """Return the seconds of all runs, at most: the workers are busy until the last run is alone."""
    slots = min(parallel, seeds * len(times))
    total = seeds * math.fsum(times)
    if slots == 1:
        return total
    return total / slots + max(times) * (1 - 1 / slots)


def resolution(metric: str, scores: Sequence[Sequence[float]], *, seeds: int, test_samples: int | None) -> Resolution:
    """Return the differences that so many seeds decide, from the scores of short runs with two seeds of each arm.

    The deviation of a run is pooled over the arms; that of a difference is the square root of two times as large,
    without credit for pairs. Two seeds agree by chance now and then, so that for a share of the test samples it is at
    least half of what the choice of the samples alone makes of two models that err on different ones.

    scores: of each arm, on validation: a choice that saw test scores would make them better than they are
    """
    squares = 0.0
    free = 0
    values: list[float] = []
    for arm in scores:
        mean = math.fsum(arm) / len(arm)
        squares += math.fsum((score - mean) ** 2 for score in arm)
        free += len(arm) - 1
        values += arm
    deviation = math.sqrt(2 * squares / max(1, free))
    level = math.fsum(values) / len(values)
    is_share = metric_range(metric, values) == SHARE
    if is_share and test_samples:
        bounded = min(max(level, 1 / test_samples), 1 - 1 / test_samples)
        deviation = max(deviation, 0.5 * math.sqrt(2 * bounded * (1 - bounded) / test_samples))
    compared = len(scores) - 1
    rule = StoppingRule("boundary", FIRST_SEEDS, seeds)
    sum_of_squares = (seeds - 1) * deviation**2
    smallest = rule.radius(seeds, sum_of_squares, ALPHA / compared)
    margin = rule.radius(seeds, sum_of_squares, 2 * ALPHA / compared)
    if is_share and test_samples:
        margin = max(margin, 2 / test_samples)
    return Resolution(deviation, smallest, _rounded_up(margin))


def seeds_to_decide(result: Resolution, gain: float, compared: int, seeds: int) -> int | None:
    """Return how many seeds decide a comparison whose arms go on to differ by `gain`; None above `seeds`."""
    rule = StoppingRule("boundary", FIRST_SEEDS, seeds)
    ends = PossibleEnds(rule, None, result.margin, ALPHA / compared, 2 * ALPHA / compared)
    return min(forecast(ends, gain, result.deviation, seeds).values(), default=None)


def refuse_blind(metric: str, result: Resolution, span: float, hours: float, seeds: int) -> None:
    """Raise UserError where only differences of more than half of everything that can be learned are decided.

    Also where the noise is not known: a recogniser that writes nothing yet has the same error rate with every seed.

    span: from the worst simple baseline to the best value of the metric, or of the scores themselves
    """
    if not result.deviation:
        raise _too_few(
            hours,
            f"{metric} is the same with both seeds of every arm after the short runs, so that the noise between seeds "
            "is not known; give more hours, by which short runs are longer",
        )
    if result.smallest <= 0.5 * span or span <= 0:
        return
    # The smallest difference falls with the root of the number of seeds.
    factor = (result.smallest / (0.5 * span)) ** 2
    raise _too_few(
        hours,
        f"{seeds} seeds tell differences of {result.smallest:.2g} or more in {metric}, where {span:.2g} is all that "
        f"can be learned; use more test samples (data.test_fraction), more data, or about {factor:.1f} times the hours",
    )


def _too_few(hours: float, reason: str) -> UserError:
    """Return the refusal of hours in which no sweep decides anything."""
    return UserError(f"hours={hours:g} decides nothing here: {reason}")


def _rounded_up(value: float) -> float:
    """Return the next larger number with a first digit of NICE."""
    if value <= 0 or not math.isfinite(value):
        return value
    scale = 10 ** math.floor(math.log10(value))
    for digit in NICE:
        if digit * scale >= value * (1 - 1e-9):
            return float(f"{digit * scale:.3g}")
    return 10 * scale
