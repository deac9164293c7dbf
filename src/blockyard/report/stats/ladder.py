"""Laws of loss against compute over a ladder of sizes, and the worth of an arm in compute.

    L(C) = E + A C^-a        E: the floor, which no compute removes; C: FLOPs of training

Fitted to the runs of every rung by least squares of log L with Huber's loss, from many starts, with one E for all
arms, which are trained on the same data, or with an E for each arm (`floors`). The compute multiplier of an arm at C is
how many times the compute the baseline needs for the loss that the arm has at C. Its interval is Student's, on the log
scale, from a bootstrap over seeds, which are drawn for all rungs and arms together.

A multiplier is withheld where the laws of the arm and the baseline are in doubt:
    the law of the other rungs misses the largest one by more than the interval of that error
    a power is above `STEEPEST`. Losses have fallen with compute to the power of 0.05 (Kaplan et al. 2020) to 0.15
        (Hoffmann et al. 2022: 0.34 and 0.28 in parameters and tokens). In theory they fall at most with 1 / tokens
        and 1 / width (Bahri et al. 2021), and no faster than C^-1/2
    its interval says little: the upper end is more than `WIDEST` times the lower one

Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (arXiv 2203.15556), approach 3 and
appendix D.3; Kaplan et al. 2020, Scaling Laws for Neural Language Models (arXiv 2001.08361); Bahri et al. 2021,
Explaining Neural Scaling Laws (arXiv 2102.06701); Huber 1964; Efron 1979 (bootstrap); Hesterberg 2015, What Teachers
Should Know About the Bootstrap, sec. 4.3, for its bias of few samples (arXiv 1411.5279).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from blockyard.errors import UserError
from blockyard.sweep.spec.keys import RUNGS, Floors

if TYPE_CHECKING:
    import numpy as np

SEEDS = 3  # the fewest for intervals
RESAMPLES = 100
BAD_FIT = 0.05  # largest relative error of a rung in a law that is reported, unless its mean is not known that well
FARTHER = 10.0  # times the largest rung: the extrapolation
STEEPEST = 0.5  # power of a law
WIDEST = 100.0  # upper over lower end of a multiplier's interval
_HUBER = 1e-2  # of log L
_LARGEST = 700.0  # the exponential of more overflows
_MOST = math.log(1e9)  # a larger multiplier stands for a loss that the baseline's law never reaches

Trend = Literal["grows", "closes", "stays"]
Points = Mapping[int, Sequence[tuple[float, float]]]  # seed -> (compute, loss) of each rung, in order


@dataclass(frozen=True)
class Law:
    """L(C) = floor + scale C^-power."""

    floor: float
    scale: float
    power: float

    def loss(self, compute: float) -> float:
        """Return the loss at this compute."""
        return self.floor + self.scale * compute**-self.power

    def compute(self, loss: float) -> float:
        """Return the compute at which the loss is reached; infinity at or below the floor."""
        if loss <= self.floor:
            return math.inf
        log = math.log(self.scale / (loss - self.floor)) / self.power
        if log > _LARGEST:
            return math.inf
        return math.exp(max(log, -_LARGEST))


@dataclass(frozen=True)
class ArmLadder:
    """The ladder of one arm. Intervals are 95 %, None where there are too few seeds.

    rungs: (mean compute, mean loss); worst: the largest relative error of a rung
    held_out: (predicted, measured) loss of the largest rung, by the law of the others
    held_out_interval: of predicted / measured - 1
    multiplier, farther: at the largest rung, and at ten times its compute; None for the baseline
    withheld, farther_withheld: why there is none; `withheld` of the baseline holds for all arms
    trend: whether the multiplier is farther from 1 at the largest rung than at the smallest one. The gap in loss
        closes as both arms come near the floor, also where the multiplier stays
    """

    name: str
    rungs: tuple[tuple[float, float], ...]
    law: Law
    worst: float
    held_out: tuple[float, float]
    held_out_interval: tuple[float, float] | None = None
    multiplier: float | None = None
    interval: tuple[float, float] | None = None
    farther: float | None = None
    farther_interval: tuple[float, float] | None = None
    withheld: str | None = None
    farther_withheld: str | None = None
    trend: Trend | None = None


class Misfit(NamedTuple):
    """An arm that no law fits.

    rungs: (compute, mean loss) of each rung; worst: the largest relative error of the best law over them
    """

    name: str
    rungs: tuple[tuple[float, float], ...]
    worst: float


class Ladders(NamedTuple):
    """Result of :func:`ladder`: the arms that a law fits, and the others."""

    arms: list[ArmLadder]
    unfitted: list[Misfit]


def fit(
    curves: Sequence[Sequence[tuple[float, float]]], *, floors: Floors = "shared", start: Sequence[Law] | None = None
) -> list[Law]:
    """Fit one law to each list of (compute, loss), with a floor that all share, or a floor each.

    start: of an earlier fit; None tries many. Raises ValueError for fewer than three computes.
    """
    if floors == "own" and len(curves) > 1:
        fitted = []
        for number, curve in enumerate(curves):
            earlier = None if start is None else [start[number]]
            fitted += fit([curve], start=earlier)
        return fitted
    import numpy as np
    from scipy import optimize
    from scipy.special import expit

    if any(len({compute for compute, _ in curve}) < RUNGS - 1 for curve in curves):
        raise ValueError(f"a law needs {RUNGS - 1} rungs or more")
    # At the geometric mean of compute, scale and power hardly depend on each other, which helps the solver.
    computes = [compute for curve in curves for compute, _ in curve]
    middle = math.exp(math.fsum(map(math.log, computes)) / len(computes))
    logs = [np.log(np.asarray(curve, dtype=float)) for curve in curves]  # (points, 2) each
    least = min(float(curve[:, 1].min()) for curve in logs)

    # The unknowns: log E, then log A (at the middle) and log a of each curve.
    def reducible(x: np.ndarray, number: int) -> np.ndarray:
        """Return log(A C^-a) at the points of a curve."""
        return x[1 + 2 * number] - np.exp(x[2 + 2 * number]) * (logs[number][:, 0] - math.log(middle))

    def residuals(x: np.ndarray) -> np.ndarray:
        # log(E + A C^-a) without the overflow of its terms
        parts = [np.logaddexp(x[0], reducible(x, number)) - curve[:, 1] for number, curve in enumerate(logs)]
        return np.concatenate(parts)

    def slopes(x: np.ndarray) -> np.ndarray:
        """Return the derivatives of the residuals (points, unknowns)."""
        parts = []
        for number, curve in enumerate(logs):
            share = expit(reducible(x, number) - x[0])  # of A C^-a in the loss
            part = np.zeros((len(curve), len(x)))
            part[:, 0] = 1 - share
            part[:, 1 + 2 * number] = share
            part[:, 2 + 2 * number] = -share * np.exp(x[2 + 2 * number]) * (curve[:, 0] - math.log(middle))
            parts.append(part)
        return np.concatenate(parts)

    starts: list[list[float]] = []
    if start is not None:
        first = [math.log(max(start[0].floor, 1e-12))]
        for law in start:
            first += [math.log(law.scale) - law.power * math.log(middle), math.log(law.power)]
        starts.append(first)
    else:
        for share, power in itertools.product((0.2, 0.5, 0.8, 0.95), (0.05, 0.2, 0.6)):
            first = [least + math.log(share)]
            for curve in logs:
                first += [float(curve[:, 1].mean()) + math.log(max(1 - share, 0.05)), math.log(power)]
            starts.append(first)
    # A floor far below every loss is no floor; powers stay within what any law has shown.
    low = [least - 12, *([-60.0, math.log(1e-3)] * len(logs))]
    high = [least - 1e-6, *([60.0, math.log(5.0)] * len(logs))]
    solutions = []
    for first in starts:
        # The solver refuses a start beyond the bounds.
        inside = np.clip(first, np.add(low, 1e-9), np.subtract(high, 1e-9))
        solution = optimize.least_squares(
            residuals, inside, jac=slopes, bounds=(low, high), loss="huber", f_scale=_HUBER
        )
        solutions.append(solution)
    best = min(solutions, key=lambda solution: float(solution.cost)).x
    laws = []
    for number in range(len(logs)):
        power = math.exp(best[2 + 2 * number])
        # From the scale at the middle back to the scale at one FLOP.
        scale = math.exp(best[1 + 2 * number] + power * math.log(middle))
        laws.append(Law(math.exp(best[0]), scale, power))
    return laws


def ladder(arms: Mapping[str, Points], baseline: str, floors: Floors = "shared") -> Ladders:
    """Return the ladder of each arm that a law fits, and which arms none fits.

    arms: name -> seed -> (compute, loss) of every rung, in the order of the rungs
    floors: whether the laws share one floor; with floors of their own, intervals beyond the rungs are far wider
    Raises UserError where rungs are too few, or no law fits the baseline or any other arm.
    """
    _refuse(arms)
    names = list(arms)
    unfitted: list[Misfit] = []
    while True:
        laws = fit([_curve(arms[name]) for name in names], floors=floors)
        means = [_means(arms[name]) for name in names]
        misfits = {}
        for name, law in zip(names, laws, strict=True):
            error = _misfit(arms[name], law)
            if error > BAD_FIT:
                misfits[name] = error
        if not misfits:
            break
        # With one floor for all, a curve that no law fits also distorts the others, so one arm is removed at a time.
        name = max(misfits.keys() - {baseline} or misfits, key=misfits.__getitem__)
        unfitted.append(Misfit(name, tuple(means[names.index(name)]), misfits[name]))
        names.remove(name)
        if name == baseline or names == [baseline]:
            raise UserError(f"ladder: {no_law({name: misfits[name]})}")
    short = fit([_curve(arms[name], leave=1) for name in names], floors=floors)
    samples = _samples([arms[name] for name in names])
    drawn = [fit([_curve(points) for points in sample], floors=floors, start=laws) for sample in samples]
    drawn_short = [
        fit([_curve(points, leave=1) for points in sample], floors=floors, start=short) for sample in samples
    ]
    seeds = len(set.intersection(*(set(arms[name]) for name in names)))
    fitted: list[ArmLadder] = []
    for number, name in enumerate(names):
        law = laws[number]
        rungs = means[number]
        worst = max(abs(law.loss(compute) / loss - 1) for compute, loss in rungs)
        largest, measured = rungs[-1]
        predicted = short[number].loss(largest)
        errors = []
        for sample, others in zip(samples, drawn_short, strict=True):
            _, mean = _means(sample[number])[-1]
            errors.append(math.log(others[number].loss(largest) / mean))
        limits = _times_of(_interval(math.log(predicted / measured), errors, seeds))
        interval = None if limits is None else (limits[0] - 1, limits[1] - 1)
        fitted.append(ArmLadder(name, tuple(rungs), law, worst, (predicted, measured), held_out_interval=interval))
    fitted = [replace(arm, withheld=_doubt(arm)) for arm in fitted]
    base = names.index(baseline)
    result = []
    for number, arm in enumerate(fitted):
        if number != base:
            arm = _against(arm, fitted[base], [(law[number], law[base]) for law in (laws, *drawn)], seeds)
        result.append(arm)
    return Ladders(result, unfitted)


def _doubt(arm: ArmLadder) -> str | None:
    """Return why the law of an arm tells no multiplier; None where it does."""
    predicted, measured = arm.held_out
    missed = predicted / measured - 1
    if arm.held_out_interval is None:
        is_missed = abs(missed) > BAD_FIT
        by = f"{100 * missed:+.2g} %"
    else:
        low, high = arm.held_out_interval
        is_missed = not low <= 0 <= high
        by = f"{100 * missed:+.2g} % ({100 * low:+.2g} to {100 * high:+.2g} %)"
    if is_missed:
        return f"the law of the other rungs misses the largest one by {by}"
    if arm.law.power > STEEPEST:
        return f"the power {arm.law.power:.2f} is beyond any known law (at most {STEEPEST:g})"
    return None


def _misfit(points: Points, law: Law) -> float:
    """Return the largest relative error of a law over the rungs where it misses the 95 % interval of the mean loss."""
    from scipy import stats

    worst = 0.0
    for rung, (compute, mean) in enumerate(_means(points)):
        losses = [curve[rung][1] for curve in points.values()]
        missed = abs(law.loss(compute) - mean)
        # A single seed has no interval, so its rung counts in any case.
        if len(losses) > 1:
            error = statistics.stdev(losses) / math.sqrt(len(losses))
            if missed <= float(stats.t.ppf(0.975, len(losses) - 1)) * error:
                continue
        worst = max(worst, missed / mean)
    return worst


def no_law(unfitted: Mapping[str, float]) -> str:
    """Return a sentence, without its full stop, on the arms that no law fits."""
    names = ", ".join(f"{name} (largest error {100 * error:.0f} %)" for name, error in unfitted.items())
    return (
        f"No law E + A C^-a fits {names}: losses may not fall with compute, or a learning rate may not suit all rungs"
    )


def multiplier(law: Law, base: Law, compute: float) -> float:
    """Return the compute that the baseline needs for the loss of a law at this compute, as a multiple of it."""
    return base.compute(law.loss(compute)) / compute


def _against(
    arm: ArmLadder,
    base: ArmLadder,
    pairs: Sequence[tuple[Law, Law]],
    seeds: int,
) -> ArmLadder:
    """Return an arm with its multipliers. pairs: its law and that of the baseline, then those of every resample"""
    doubt = arm.withheld
    if base.withheld is not None:
        doubt = f"of {base.name}, {base.withheld}"
    if doubt is not None:
        return replace(arm, withheld=doubt, farther_withheld=doubt)

    def at(compute: float) -> tuple[float, list[float]]:
        """Return the log of the multiplier, and its values over the draws."""
        point, *others = [_log(multiplier(law, base_law, compute)) for law, base_law in pairs]
        return point, others

    smallest, _ = arm.rungs[0]
    largest, _ = arm.rungs[-1]
    first, first_draws = at(smallest)
    near, near_draws = at(largest)
    far, far_draws = at(FARTHER * largest)
    near_interval = _interval(near, near_draws, seeds)
    far_interval = _interval(far, far_draws, seeds)
    doubt = _wide(near_interval)
    if doubt is not None:
        return replace(arm, withheld=doubt, farther_withheld=doubt)
    # In logs, a worth of a half is as far from 1 as a worth of two.
    growth = [abs(last) - abs(start) for start, last in zip(first_draws, near_draws, strict=True)]
    change = _interval(abs(near) - abs(first), growth, seeds)
    trend: Trend | None = None
    if change is not None:
        trend = "stays"
        if change[0] > 0:
            trend = "grows"
        elif change[1] < 0:
            trend = "closes"
    arm = replace(arm, multiplier=_times(near), interval=_times_of(near_interval), trend=trend)
    doubt = _wide(far_interval)
    if doubt is not None:
        return replace(arm, farther_withheld=doubt)
    return replace(arm, farther=_times(far), farther_interval=_times_of(far_interval))


def _wide(logs: tuple[float, float] | None) -> str | None:
    """Return why an interval of the log of a multiplier says too little; None where it says enough."""
    if logs is None or logs[1] - logs[0] <= math.log(WIDEST):
        return None
    low, high = _times(logs[0]), _times(logs[1])
    return f"the interval, {low:.2g} to {high:.2g} times, spans more than two orders of magnitude"


def _log(times: float) -> float:
    if times <= 0:  # so small that it is rounded to 0
        return -_MOST
    return max(-_MOST, min(_MOST, math.log(times)))


def _times(log: float) -> float:
    return math.inf if log >= _MOST else math.exp(log)


def _times_of(logs: tuple[float, float] | None) -> tuple[float, float] | None:
    if logs is None:
        return None
    return (_times(logs[0]), _times(logs[1]))


def _interval(point: float, draws: Sequence[float], seeds: int) -> tuple[float, float] | None:
    """Return Student's interval from the standard deviation of a bootstrap over `seeds` seeds; None without draws."""
    from scipy import stats

    if len(draws) < 2:
        return None
    mean = math.fsum(draws) / len(draws)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in draws) / (len(draws) - 1))
    # A bootstrap draws from the seeds' own distribution, whose variance is smaller by (n - 1) / n (Hesterberg 2015).
    half = float(stats.t.ppf(0.975, seeds - 1)) * deviation * math.sqrt(seeds / (seeds - 1))
    return point - half, point + half


def _refuse(arms: Mapping[str, Points]) -> None:
    for name, points in arms.items():
        rungs = {len(curve) for curve in points.values()}
        if not points or min(rungs) < RUNGS:
            raise UserError(f"ladder: {name} has {min(rungs, default=0)} rungs; a law needs {RUNGS} or more")
        if any(loss <= 0 for curve in points.values() for _, loss in curve):
            raise UserError(f"ladder: {name} has a loss that is not above 0; a law is of a loss such as bits per byte")


def _curve(points: Points, leave: int = 0) -> list[tuple[float, float]]:
    """Return the points of all seeds. leave: the number of the largest rungs that are left out"""
    pairs: list[tuple[float, float]] = []
    for curve in points.values():
        pairs += curve[: len(curve) - leave]
    return pairs


def _means(points: Points) -> list[tuple[float, float]]:
    """Return the mean compute and the mean loss of each rung."""
    means = []
    for rung in zip(*points.values(), strict=True):
        compute = math.fsum(compute for compute, _ in rung) / len(rung)
        loss = math.fsum(loss for _, loss in rung) / len(rung)
        means.append((compute, loss))
    return means


def _samples(arms: Sequence[Points]) -> list[list[Points]]:
    """Return the points of seeds drawn with replacement, the same seeds for all arms; none for too few seeds."""
    import numpy as np

    common = sorted(set.intersection(*(set(points) for points in arms)))
    if len(common) < SEEDS:
        return []
    draw = np.random.default_rng(0)
    samples = []
    for _ in range(RESAMPLES):
        seeds = [common[index] for index in draw.integers(len(common), size=len(common))]
        sample: list[Points] = [dict(enumerate(points[seed] for seed in seeds)) for points in arms]
        samples.append(sample)
    return samples
