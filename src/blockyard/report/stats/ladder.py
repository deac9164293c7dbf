"""Laws of loss against compute over a ladder of sizes, and what an arm is worth in compute.

    L(C) = E + A C^-a        E: what no compute removes; C: FLOPs of training

Fitted to the runs of every rung by least squares of log L with Huber's loss, from many starts, with one E for all
arms, which are trained on the same data, or with an E for each arm (`floors`). The compute multiplier of an arm at C is
how many times the compute the baseline needs for the loss that the arm has at C. Its interval is Student's, on the log
scale, from a bootstrap over seeds, which are drawn for all rungs and arms together.

Source: Hoffmann et al. 2022, Training Compute-Optimal Large Language Models (arXiv 2203.15556), approach 3 and
appendix D.3; Huber 1964; Efron 1979 (bootstrap); Hesterberg 2015, What Teachers Should Know About the
    Bootstrap, sec. 4.3, for its bias of few samples (arXiv 1411.5279).
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
BAD_FIT = 0.05  # relative error of a rung beyond which no law is told, unless its mean is not known that well
_HUBER = 1e-2  # of log L
_LARGEST = 700.0  # whose exponential is still a number
FARTHER = 10.0  # times the largest rung: the extrapolation

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
        return math.inf if log > _LARGEST else math.exp(max(log, -_LARGEST))


@dataclass(frozen=True)
class ArmLadder:
    """The ladder of one arm. Intervals are 95 %, None where there are too few seeds.

    rungs: (mean compute, mean loss); worst: the largest relative error of a rung
    held_out: (predicted, measured) loss of the largest rung, by the law of the others
    multiplier, farther: at the largest rung, and at ten times its compute; None for the baseline
    trend: whether the multiplier is farther from 1 at the largest rung than at the smallest one. The gap in loss itself
        closes as both come near the floor, also where the multiplier stays
    """

    name: str
    rungs: tuple[tuple[float, float], ...]
    law: Law
    worst: float
    held_out: tuple[float, float]
    multiplier: float | None = None
    interval: tuple[float, float] | None = None
    farther: float | None = None
    farther_interval: tuple[float, float] | None = None
    trend: Literal["grows", "closes", "stays"] | None = None


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
        earlier = [None] * len(curves) if start is None else [[law] for law in start]
        return [fit([curve], start=laws)[0] for curve, laws in zip(curves, earlier, strict=True)]
    import numpy as np
    from scipy import optimize

    if any(len({compute for compute, _ in curve}) < RUNGS - 1 for curve in curves):
        raise ValueError(f"a law needs {RUNGS - 1} rungs or more")
    # At the geometric mean of compute, scale and power hardly depend on each other, which helps the solver.
    middle = math.exp(math.fsum(math.log(c) for curve in curves for c, _ in curve) / sum(map(len, curves)))
    logs = [np.log(np.asarray(curve, dtype=float)) for curve in curves]  # (points, 2) each
    least = min(float(curve[:, 1].min()) for curve in logs)

    def residuals(x: np.ndarray) -> np.ndarray:
        parts = []
        for number, curve in enumerate(logs):
            scale, power = x[1 + 2 * number], np.exp(x[2 + 2 * number])
            # log(E + A C^-a) without the overflow of its terms
            parts.append(np.logaddexp(x[0], scale - power * (curve[:, 0] - math.log(middle))) - curve[:, 1])
        return np.concatenate(parts)

    starts = []
    if start is not None:
        starts.append([math.log(max(start[0].floor, 1e-12)), *itertools.chain(*(_inner(law, middle) for law in start))])
    else:
        for share, power in itertools.product((0.2, 0.5, 0.8, 0.95), (0.05, 0.2, 0.6)):
            inner = [(float(curve[:, 1].mean()) + math.log(max(1 - share, 0.05)), math.log(power)) for curve in logs]
            starts.append([least + math.log(share), *itertools.chain(*inner)])
    # A floor far below every loss is no floor; powers stay within what any law has shown.
    low = [least - 12, *([-60.0, math.log(1e-3)] * len(logs))]
    high = [least - 1e-6, *([60.0, math.log(5.0)] * len(logs))]
    bounds = (low, high)
    inside = [np.clip(each, np.add(low, 1e-9), np.subtract(high, 1e-9)) for each in starts]
    solutions = [optimize.least_squares(residuals, x, bounds=bounds, loss="huber", f_scale=_HUBER) for x in inside]
    best = min(solutions, key=lambda one: float(one.cost)).x
    return [
        Law(
            math.exp(best[0]),
            math.exp(best[1 + 2 * number] + math.exp(best[2 + 2 * number]) * math.log(middle)),
            math.exp(best[2 + 2 * number]),
        )
        for number in range(len(logs))
    ]


def _inner(law: Law, middle: float) -> tuple[float, float]:
    return math.log(law.scale) - law.power * math.log(middle), math.log(law.power)


def ladder(arms: Mapping[str, Points], baseline: str, floors: Floors = "shared") -> Ladders:
    """Return the ladder of each arm that a law fits, and which arms none fits.

    arms: name -> seed -> (compute, loss) of every rung, in the order of the rungs
    floors: whether the laws share one floor; with floors of their own, intervals beyond the rungs are far wider
    Raises UserError where rungs are too few, or no law fits the baseline or any other arm.
    """
    _refuse(arms)
    names, unfitted = list(arms), list[Misfit]()
    while True:
        laws = fit([_curve(arms[name]) for name in names], floors=floors)
        means = [_means(arms[name]) for name in names]
        worst = [max(abs(law.loss(c) / y - 1) for c, y in rungs) for law, rungs in zip(laws, means, strict=True)]
        misfits = {
            name: error for name, law in zip(names, laws, strict=True) if (error := _misfit(arms[name], law)) > BAD_FIT
        }
        if not misfits:
            break
        # With one floor for all, a curve that no law fits also distorts the others, so one arm is removed at a time.
        name = max(misfits.keys() - {baseline} or misfits, key=misfits.__getitem__)
        unfitted.append(Misfit(name, tuple(means[names.index(name)]), misfits[name]))
        names.remove(name)
        if name == baseline or names == [baseline]:
            raise UserError(f"ladder: {no_law({name: misfits[name]})}")
    short = fit([_curve(arms[name], leave=1) for name in names], floors=floors)
    kept = {name: arms[name] for name in names}
    drawn = _bootstrap(kept, laws, floors)
    seeds = len(set.intersection(*(set(points) for points in kept.values())))
    base = names.index(baseline)
    result = []
    for number, name in enumerate(names):
        top = means[number][-1]
        own = ArmLadder(name, tuple(means[number]), laws[number], worst[number], (short[number].loss(top[0]), top[1]))
        if number != base:
            own = _against(own, number, base, laws, drawn, seeds)
        result.append(own)
    return Ladders(result, unfitted)


def _misfit(points: Points, law: Law) -> float:
    """Return the largest relative error of a law over the rungs where it misses the 95 % interval of the mean loss."""
    from scipy import stats

    worst = 0.0
    for rung, (compute, mean) in enumerate(_means(points)):
        losses, missed = [curve[rung][1] for curve in points.values()], abs(law.loss(compute) - mean)
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
    """How many times the compute the baseline needs for the loss of a law at this compute."""
    return base.compute(law.loss(compute)) / compute


def _against(
    own: ArmLadder,
    number: int,
    base: int,
    laws: Sequence[Law],
    drawn: Sequence[Sequence[Law]],
    seeds: int,
) -> ArmLadder:
    def at(compute: float) -> tuple[float, list[float]]:
        """Return the log of the multiplier, and its values over the draws."""
        point, *others = (_log(multiplier(each[number], each[base], compute)) for each in (laws, *drawn))
        return point, others

    first, near, far = at(own.rungs[0][0]), at(own.rungs[-1][0]), at(FARTHER * own.rungs[-1][0])
    growth = abs(near[0]) - abs(first[0]), [abs(b) - abs(a) for a, b in zip(first[1], near[1], strict=True)]
    change = _interval(*growth, seeds)
    return replace(
        own,
        multiplier=_times(near[0]),
        interval=_times_of(_interval(*near, seeds)),
        farther=_times(far[0]),
        farther_interval=_times_of(_interval(*far, seeds)),
        trend=None if change is None else "grows" if change[0] > 0 else "closes" if change[1] < 0 else "stays",
    )


_MOST = math.log(1e9)  # a larger multiplier is that of a loss which the baseline's law never reaches


def _log(times: float) -> float:
    return max(-_MOST, min(_MOST, math.log(times))) if times > 0 else -_MOST  # so small that it is rounded to 0


def _times(log: float) -> float:
    return math.inf if log >= _MOST else math.exp(log)


def _times_of(logs: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if logs is None else (_times(logs[0]), _times(logs[1]))


def _interval(point: float, draws: Sequence[float], seeds: int) -> tuple[float, float] | None:
    """Student's interval from the standard deviation of a bootstrap over so few seeds, which is too small by n - 1."""
    from scipy import stats

    if len(draws) < 2:
        return None
    mean = math.fsum(draws) / len(draws)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in draws) / (len(draws) - 1))
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
    return [pair for curve in points.values() for pair in curve[: len(curve) - leave]]


def _means(points: Points) -> list[tuple[float, float]]:
    curves = list(points.values())
    count = len(curves)
    return [
        (math.fsum(curve[rung][0] for curve in curves) / count, math.fsum(curve[rung][1] for curve in curves) / count)
        for rung in range(len(curves[0]))
    ]


def _bootstrap(arms: Mapping[str, Points], laws: Sequence[Law], floors: Floors) -> list[list[Law]]:
    """Laws of seeds that are drawn with replacement, the same for all arms; none for too few seeds."""
    import numpy as np

    common = sorted(set.intersection(*(set(points) for points in arms.values())))
    if len(common) < SEEDS:
        return []
    draw = np.random.default_rng(0)
    resampled = []
    for _ in range(RESAMPLES):
        seeds = [common[index] for index in draw.integers(len(common), size=len(common))]
        curves = [[pair for seed in seeds for pair in points[seed]] for points in arms.values()]
        resampled.append(fit(curves, floors=floors, start=laws))
    return resampled
