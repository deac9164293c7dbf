"""The sources of the noise of a run: first weights, order of the data, and the draws of dropout and augmentation.

Runs with every combination of a few seeds of each source are a crossed layout with one value in each cell, whose
factors are all drawn at random:

    y_ijk = m + weights_i + order_j + draws_k + their interactions + repeat_ijk

A variance component is a linear combination of mean squares, set to zero where it is negative. The part of a single
source is what it adds whatever the others are; the interactions are what it adds with one value of the others and not
with the next. Repeats of the same settings give the variance that no seed explains.

An interval of a share is a generalized one: each mean square over its degrees of freedom is replaced by itself over a
drawn chi-square. With few seeds of a source it is wide: that of the variance of three values spans a factor of 146.

Source: Searle, Casella and McCulloch 1992, Variance Components, sections 4.3 and 5.3; Weerahandi 1993, Generalized
    confidence intervals; Bouthillier et al. 2021, Accounting for variance in machine learning benchmarks (arXiv
    2103.03098)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blockyard.atomic_files import write_json
from blockyard.terminal import table

if TYPE_CHECKING:
    from rich.table import Table

SOURCES = ("weights", "order", "draws")
INTERACTIONS = "interactions"
REPEATS = "repeats"
NAMES = {
    "weights": "first weights",
    "order": "order of the data",
    "draws": "dropout, augmentation",
    INTERACTIONS: "these together (interactions)",
    REPEATS: "the same seeds again",
}
DRAWN = 20_000  # draws of the mean squares
LEVEL = 0.95


@dataclass(frozen=True)
class NoisyRun:
    """A run of the design. weights, order, draws: its seeds; repeat: which of the runs with these; value: the metric"""

    weights: int
    order: int
    draws: int
    repeat: int
    value: float


@dataclass(frozen=True)
class SourceShare:
    """The part of a source in the variance of a run. interval: of the share, 95 %; deviation: in the metric's unit"""

    source: str
    variance: float
    deviation: float
    share: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class NoiseResult:
    """The sources of the noise of a metric.

    shares: they add up to 1; empty where all runs have one value
    deviation: the standard deviation of a run with new seeds of all sources
    mean: over the runs of the design
    """

    metric: str
    runs: Sequence[NoisyRun]
    shares: Sequence[SourceShare]
    deviation: float
    mean: float


def noise_result(metric: str, runs: Sequence[NoisyRun], sources: Sequence[str], *, seed: int = 0) -> NoiseResult:
    """Return the shares of the sources in the variance of a metric.

    runs: every combination of the seeds of `sources`, which have the same number each, and repeats of some of them
    seed: of the drawn mean squares
    """
    values = _layout(runs, sources)
    squares = mean_squares(values)
    repeated, free = _repeated(runs)
    shares: list[SourceShare] = []
    estimated = _components({key: np.array(square) for key, (square, _) in squares.items()}, values.shape, repeated)
    variances = {source: float(variance) for source, variance in estimated.items()}
    total = math.fsum(variances.values())
    if total > 0:
        intervals = _intervals(squares, values.shape, repeated, free, np.random.default_rng(seed))
        for number, variance in variances.items():
            name = number if number in (INTERACTIONS, REPEATS) else sources[int(number)]
            shares.append(SourceShare(name, variance, math.sqrt(variance), variance / total, intervals[number]))
    return NoiseResult(metric, list(runs), shares, math.sqrt(total), float(values.mean()))


Effect = tuple[int, ...]  # the axes of an effect: one of a main effect, two or more of an interaction


def mean_squares(values: np.ndarray) -> dict[Effect, tuple[float, int]]:
    """Return the mean square and the degrees of freedom of each effect of a crossed layout with one value in a cell."""
    axes = range(values.ndim)
    squares: dict[Effect, tuple[float, int]] = {}
    means: dict[Effect, np.ndarray] = {(): values.mean(keepdims=True)}
    for count in range(1, values.ndim + 1):
        for effect in itertools.combinations(axes, count):
            others = tuple(axis for axis in axes if axis not in effect)
            part = values.mean(axis=others, keepdims=True)
            for lower in means:
                if set(lower) < set(effect):
                    part = part - means[lower]
            means[effect] = part
            free = math.prod(values.shape[axis] - 1 for axis in effect)
            cells = math.prod(values.shape[axis] for axis in others)
            squares[effect] = (float(cells * (part**2).sum() / free), free)
    return squares


def _components(
    squares: dict[Effect, np.ndarray], shape: tuple[int, ...], repeated: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the variance components, none below zero, of one or many sets of mean squares.

    repeated: the variance of repeats
    Returns by the number of a source's axis, then the interactions and the repeats.
    """
    axes = range(len(shape))
    whole = tuple(axes)
    parts: dict[str, np.ndarray] = {}
    together = np.maximum(squares[whole] - repeated, 0)  # of all sources, without what repeats differ by
    for effect in itertools.combinations(axes, 1):
        parts[str(effect[0])] = np.maximum(_component(squares, effect, shape), 0)
    for count in range(2, len(shape)):
        for effect in itertools.combinations(axes, count):
            together = together + np.maximum(_component(squares, effect, shape), 0)
    if len(shape) > 1:
        parts[INTERACTIONS] = together
    parts[REPEATS] = np.asarray(repeated)
    return parts


def _component(squares: dict[Effect, np.ndarray], effect: Effect, shape: tuple[int, ...]) -> np.ndarray:
    """Return the variance component of an effect: what its mean square has beyond those of the effects above it.

    The expected mean square of an effect is the sum of the components of all effects that contain it, each times the
    number of cells that share its levels. So inclusion and exclusion leave one component.
    """
    axes = range(len(shape))
    others = [axis for axis in axes if axis not in effect]
    total = np.zeros_like(squares[effect])
    for count in range(len(others) + 1):
        for added in itertools.combinations(others, count):
            containing = tuple(sorted((*effect, *added)))
            total = total + (-1) ** count * squares[containing]
    return total / math.prod(shape[axis] for axis in others)


def _intervals(
    squares: dict[Effect, tuple[float, int]],
    shape: tuple[int, ...],
    repeated: float,
    free: int,
    generator: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Return an interval of the share of each component."""
    drawn = {}
    for effect, (square, of_effect) in squares.items():
        drawn[effect] = square * of_effect / generator.chisquare(of_effect, DRAWN)
    drawn_repeats = np.full(DRAWN, repeated)
    if free and repeated:
        drawn_repeats = repeated * free / generator.chisquare(free, DRAWN)
    components = _components(drawn, shape, drawn_repeats)
    total = np.sum(list(components.values()), axis=0)
    intervals = {}
    for source, component in components.items():
        shares = component / np.where(total > 0, total, 1)
        low, high = np.quantile(shares, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        intervals[source] = (float(low), float(high))
    return intervals


def _layout(runs: Sequence[NoisyRun], sources: Sequence[str]) -> np.ndarray:
    """Return the values of the first runs with each combination of seeds, an axis for each source."""
    first = {tuple(getattr(run, source) for source in sources): run.value for run in reversed(runs) if not run.repeat}
    levels = [sorted({key[axis] for key in first}) for axis in range(len(sources))]
    return np.array([first[key] for key in itertools.product(*levels)]).reshape([len(level) for level in levels])


def _repeated(runs: Sequence[NoisyRun]) -> tuple[float, int]:
    """Return the variance within runs of the same seeds, and its degrees of freedom."""
    groups: dict[tuple[int, int, int], list[float]] = {}
    for run in runs:
        groups.setdefault((run.weights, run.order, run.draws), []).append(run.value)
    free = sum(len(values) - 1 for values in groups.values())
    squares = sum(float(np.var(values) * len(values)) for values in groups.values() if len(values) > 1)
    return (squares / free if free else 0.0), free


def noise_table(result: NoiseResult) -> Table:
    """Return a row for each source."""
    rows = table(f"noise of {result.metric}", "source", "share of the variance", "95 % interval", "standard deviation")
    for part in result.shares:
        low, high = part.interval
        interval = f"{100 * low:.0f} to {100 * high:.0f} %"
        rows.add_row(NAMES[part.source], f"{100 * part.share:.0f} %", interval, f"{part.deviation:.2g}")
    return rows


def noise_hints(result: NoiseResult, levels: int) -> list[str]:
    """Return sentences: the mean, the deviation of a run, and how far the shares can be trusted.

    levels: seeds of each source
    """
    if not result.shares:
        return [f"all {len(result.runs)} runs have {result.metric} = {result.mean:.4g}: no seed moves it"]
    largest = max(result.shares, key=lambda part: part.share)
    return [
        f"{result.metric} is {result.mean:.4g} in the mean, with a standard deviation of {result.deviation:.2g} over "
        f"seeds of all sources; the largest share is that of {NAMES[largest.source]}",
        f"shares from {levels} seeds of each source are rough, as their intervals say; more levels narrow them",
    ]


def write_noise(result: NoiseResult, folder: Path) -> list[Path]:
    """Write noise.json: the shares, and the value of each run."""
    write_json(folder / "noise.json", asdict(result))
    return [folder / "noise.json"]
