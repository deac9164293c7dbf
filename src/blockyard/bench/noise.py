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
    INTERACTIONS: "interactions of these",
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
    """The part of a source in the variance of a run, without its interactions with others.

    deviation: in the metric's unit; interval: of the share, 95 %
    varied: the variance of runs that differ in the seed of this source alone, interactions included, as a share; None
        of what is no source
    """

    source: str
    variance: float
    deviation: float
    share: float
    interval: tuple[float, float]
    varied: float | None


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
    observed = {effect: np.array(square) for effect, (square, _) in squares.items()}
    variances = _by_source(_components(observed, values.shape, np.array(repeated)), sources)
    total = math.fsum(float(variance) for variance, _ in variances.values())
    shares: list[SourceShare] = []
    if total > 0:
        intervals = _intervals(squares, values.shape, repeated, free, sources, np.random.default_rng(seed))
        for source, (variance, varied) in variances.items():
            share = SourceShare(
                source=source,
                variance=float(variance),
                deviation=math.sqrt(variance),
                share=float(variance) / total,
                interval=intervals[source],
                varied=None if varied is None else float(varied) / total,
            )
            shares.append(share)
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
) -> dict[Effect, np.ndarray]:
    """Return the variance component of each effect, none below zero, of one or many sets of mean squares.

    repeated: the variance of repeats, which is the component of no effect, ()
    """
    components = {}
    whole = tuple(range(len(shape)))
    for effect in squares:
        component = _component(squares, effect, shape)
        if effect == whole:  # one value in a cell: the highest interaction holds what repeats differ by
            component = component - repeated
        components[effect] = np.maximum(component, 0)
    components[()] = repeated
    return components


def _by_source(
    components: dict[Effect, np.ndarray], sources: Sequence[str]
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Return by source its own component, and the variance of runs that differ in the seed of this source alone."""
    by_source: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
    for axis, source in enumerate(sources):
        varied = sum(component for effect, component in components.items() if axis in effect)
        by_source[source] = (components[axis,], np.asarray(varied))
    together = sum(component for effect, component in components.items() if len(effect) > 1)
    by_source[INTERACTIONS] = (np.asarray(together), None)
    by_source[REPEATS] = (components[()], None)
    return by_source


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
    sources: Sequence[str],
    generator: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Return an interval of the share of each source."""
    drawn = {}
    for effect, (square, of_effect) in squares.items():
        drawn[effect] = square * of_effect / generator.chisquare(of_effect, DRAWN)
    drawn_repeats = np.full(DRAWN, repeated)
    if free and repeated:
        drawn_repeats = repeated * free / generator.chisquare(free, DRAWN)
    variances = _by_source(_components(drawn, shape, drawn_repeats), sources)
    total = np.sum([variance for variance, _ in variances.values()], axis=0)
    intervals = {}
    for source, (variance, _) in variances.items():
        shares = variance / np.where(total > 0, total, 1)
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
    """Return a row for each source: its share of the variance, and that of runs in which it alone varies."""
    shares = table(
        f"noise of {result.metric}", "source", "share", "95 % interval", "where it alone varies", "standard deviation"
    )
    for part in result.shares:
        low, high = part.interval
        interval = f"{100 * low:.0f} to {100 * high:.0f} %"
        varied = "" if part.varied is None else f"{100 * part.varied:.0f} %"
        shares.add_row(NAMES[part.source], f"{100 * part.share:.0f} %", interval, varied, f"{part.deviation:.2g}")
    return shares


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
