"""Estimates the cost of the cells that are left: FLOPs, and time from finished runs on this host or from first steps.

FLOPs of training are taken as three times those of the forward pass (`plan.sizes`). How many samples an epoch has comes
from the data, which is read, or from a finished run on the same data.

The time of a cell is that of finished runs of the same arm; else of finished runs of about its size (`_COMPARABLE`);
else it follows from the first steps of an arm, which a dry run measures for a few seconds and keeps beside the plan:
those of the first arm, or where arms differ in FLOPs those of the smallest and of the largest, with a straight line
between them. A sweep that starts without all of these is timed by its own first steps (`seconds_left`). Evaluations and
the start of a run count everywhere. Runs that were measured alone do not show how parallel cells share cores, caches
and memory; the time is then followed by its upper bound, that of one cell after another.
"""

from __future__ import annotations

import heapq
import json
import math
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from blockyard.atomic_files import read_json, write_json
from blockyard.config.size_matching import ModelSizes
from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.runs.folder import RUN, SUMMARY
from blockyard.runs.lock import exclusive
from blockyard.runs.status import now, read_status
from blockyard.runs.store import Entry, runs
from blockyard.sweep.cell.states import PlannedRun, duration
from blockyard.sweep.cells import Cell, Variant
from blockyard.sweep.plan.sizes import TRAINING, training_samples
from blockyard.sweep.plan.sweep_plan import SweepPlan

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader
    from blockyard.sweep.execution.measured_run import MeasuredRun


# FLOPs of whole runs, and the time that finished runs on this host took.

_RECENT = 200  # finished runs that are read, the newest
_NEAREST = 3
_COMPARABLE = 3.0  # ratio of FLOPs, and of steps, up to which the time of one run tells that of another
_UNEQUAL = 1.25  # ratio of FLOPs from which two arms are measured


@dataclass(frozen=True)
class RunTime:
    """The time of a run, in seconds: `start` to its first step, `work` from there to its end, evaluations included.

    flops: of its training; steps: of the optimizer, None where unknown; trainer: the choice of this family
    """

    start: float
    work: float
    flops: float
    steps: float | None = None
    trainer: str | None = None

    def comparable(self, flops: float, steps: float | None) -> bool:
        """Return whether a run of these FLOPs and steps is of about the same size."""
        ratios = [flops / self.flops]
        if steps and self.steps:
            ratios.append(steps / self.steps)
        return all(1 / _COMPARABLE <= ratio <= _COMPARABLE for ratio in ratios)

    def scaled(self, flops: float, steps: float | None) -> float:
        """Return the seconds of a run of about the same size.

        The time of a step lies between a constant, where Python and the start of kernels take it, and one in proportion
        to its FLOPs, where arithmetic does. The geometric mean of both is at most the square root of `_COMPARABLE` off.
        """
        more_steps = steps / self.steps if steps and self.steps else 1.0
        more_flops = flops / self.flops / more_steps
        return self.start + self.work * more_steps * math.sqrt(more_flops)


@dataclass
class FinishedRuns:
    """The newest finished runs below `outputs` that were made on this host.

    seconds: of each run from its start to its end, by identity
    times: of the runs that may tell the time of others, so none of `debug`
    train_sizes: samples of the training part by identity, with a run that has them
    intervals: when each run started and ended, in ISO 8601
    """

    count: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    times: list[RunTime] = field(default_factory=list)
    train_sizes: dict[str, tuple[Entry, int]] = field(default_factory=dict)
    intervals: list[tuple[str, str]] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether no two of the runs ran at the same time, so that they do not show how runs slow each other down."""
        ordered = sorted(self.intervals)
        return bool(ordered) and all(ended <= started for (_, ended), (started, _) in pairwise(ordered))

    @classmethod
    def read(cls, plan: SweepPlan) -> FinishedRuns:
        """Read summaries; runs without a complete one are skipped."""
        finished = cls()
        for entry in runs(plan.outputs)[:_RECENT]:
            try:
                summary, facts = read_json(entry.path / SUMMARY), read_json(entry.path / RUN)
                if facts["host"]["name"] != socket.gethostname() or not summary["seconds"] > 0:
                    continue
                flops = float(summary["flops_per_sample"]["training"]) * float(summary["samples"])
                # Training alone is shorter; of a run that was resumed, the last attempt may be, too.
                identity, training = str(facts["identity"]), float(summary["seconds"])
                status = read_status(entry.path)
                seconds = max(training, duration(status) or 0.0)
                # Of a run that `train` has started, the first step waited for the imports of its process, too.
                start = min(seconds - training, float(summary.get("seconds_to_first_step") or 0.0))
                choices = dict(facts.get("choices") or {})
                run = RunTime(start, seconds - start, flops, summary.get("steps"), choices.get("trainer"))
            except (OSError, ValueError, KeyError, TypeError):
                continue
            finished.count += 1
            if status.started and status.ended:
                finished.intervals.append((status.started, status.ended))
            finished.seconds.setdefault(identity, []).append(seconds)
            if flops > 0 and choices.get("debug") in (None, "none"):
                finished.times.append(run)
            size = (summary.get("data") or {}).get("train")
            if isinstance(size, int):
                finished.train_sizes.setdefault(identity, (entry, size))
        return finished

    def of_about_size(self, flops: float, steps: float | None, trainer: str | None) -> float | None:
        """Return the seconds of a run by the runs that are nearest in size; None where none is comparable."""
        near = [run for run in self.times if run.trainer == trainer and run.comparable(flops, steps)]
        nearest = sorted(near, key=lambda run: abs(math.log(run.flops / flops)))[:_NEAREST]
        return statistics.median(run.scaled(flops, steps) for run in nearest) if nearest else None

    def train_size(self, data_key: str) -> int | None:
        """Samples of the training part of a finished run on the same data, or None."""
        for entry, size in self.train_sizes.values():
            try:
                if _data_key(entry.folder.config) == data_key:
                    return size
            except (UserError, OSError):  # a damaged config tells nothing
                continue
        return None


@dataclass
class RunSizes:
    """FLOPs of whole runs. data: has read the data of the cells; None where nothing has."""

    plan: SweepPlan
    finished: FinishedRuns
    data: DataReader | None = None
    models: ModelSizes = field(default_factory=ModelSizes)
    _flops: dict[str, float | None] = field(default_factory=dict)
    _train_sizes: dict[str, int | None] = field(default_factory=dict)

    @property
    def problem(self) -> str | None:
        """Why the size of a model is unknown, or None."""
        problems = list(self.models.failed.values())
        more = f" and {len(problems) - 1} more of the kind" if len(problems) > 1 else ""
        return f"{problems[0]}{more}" if problems else None

    def flops(self, variant: str) -> float | None:
        """FLOPs of training one run of a variant; None where unknown."""
        if variant not in self._flops:
            config = self.plan.variants[variant].config
            forward, samples = self.models.measure(config, "flops"), self.samples(config)
            self._flops[variant] = None if forward is None or samples is None else float(TRAINING * forward * samples)
        return self._flops[variant]

    def samples(self, config: Node) -> float | None:
        """Samples that training processes; None where the length of an epoch is unknown."""
        return training_samples(config, lambda: self._train_size(config))

    def steps(self, config: Node) -> float | None:
        """Steps of the optimizer of a whole run; None where the length of an epoch is unknown."""
        samples = self.samples(config)
        return None if samples is None else samples / config["data"]["batch_size"]

    def _train_size(self, config: Node) -> int | None:
        key = _data_key(config)
        if key not in self._train_sizes:
            read = None if self.data is None else self.data.read(config).train_samples
            self._train_sizes[key] = self.finished.train_size(key) if read is None else read
        return self._train_sizes[key]


def _data_key(config: Node) -> str:
    """Equal for configs that read the same data."""
    return json.dumps([config.get(key) for key in ("data", "tokenizer", "source_tokenizer")], sort_keys=True)


_LATER = "unknown until a cell has taken its first steps"


@dataclass
class Estimate:
    """The cost of cells.

    flops: of training all of them, None where unknown
    seconds: with `parallel` cells at a time, or one after another where `parallel` is None; None where unknown
    at_most: seconds if parallel cells slow each other down until they gain nothing; None where finished runs show this
    longest: seconds of the longest cell; source: where the time comes from
    problem: why the size of a model is unknown, or None
    sizes: FLOPs of training by run, where they are known
    """

    cells: int
    flops: float | None = 0.0
    seconds: float | None = 0.0
    parallel: int | None = 1
    at_most: float | None = None
    longest: float = 0.0
    source: str = ""
    problem: str | None = None
    sizes: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.cells:
            return "nothing is left to run"
        flops = "FLOPs unknown" if self.problem else None
        if self.flops is not None:
            flops = f"{self.flops:.2g} training FLOPs"
        if self.seconds is None:
            cost = f"{flops}, time {_LATER}" if flops else f"FLOPs and time {_LATER}"
        else:
            cost = f"{flops or 'FLOPs unknown'}, {self.time} ({self.source})"
        problem = f"; the size of a model is unknown: {self.problem}" if self.problem else ""
        return f"{self.cells} to run: {cost}{problem}"

    @property
    def time(self) -> str:
        """The time as text, with the number of cells in parallel."""
        assert self.seconds is not None
        if self.parallel is not None:
            most = "" if self.at_most is None else format_duration(self.at_most)
            shared = f", up to {most} if they slow each other down," if most else ""
            return f"about {format_duration(self.seconds)}{shared} with {self.parallel} in parallel"
        return (
            f"about {format_duration(self.seconds)} one after another, {format_duration(self.longest)} if all run in "
            "parallel; the queue decides how many do, unless executor.workers does"
        )


def estimate(
    plan: SweepPlan,
    cells: Sequence[Cell],
    *,
    parallel: int | None = 1,
    data: DataReader | None = None,
    measured: Callable[[Variant], MeasuredRun | None] | None = None,
) -> Estimate:
    """The cost of `cells`, which are those still to run.

    parallel: how many run at the same time; None where a queue decides
    data: has read the data of the cells, and knows how many samples an epoch has
    measured: returns the first steps of an arm, for which it is asked where no finished run is comparable
    """
    if not cells:
        return Estimate(0)
    finished = FinishedRuns.read(plan)
    run_sizes = RunSizes(plan, finished, data=data)
    flops = [run_sizes.flops(cell.variant) for cell in cells]
    sizes = {cell.run: size for cell, size in zip(cells, flops, strict=True) if size}
    total = None if None in flops else math.fsum(size for size in flops if size is not None)
    times = _finished(plan, cells, run_sizes)
    imports = 0.0
    if times is None:
        from_steps = _measured(plan, cells, flops, data, measured)
        if from_steps is None:
            return Estimate(len(cells), total, None, parallel, problem=run_sizes.problem, sizes=sizes)
        times, imports, arms = from_steps
        source, alone = f"from the first steps of {' and '.join(arms)}", True
    else:
        source = f"from {finished.count} finished run{'s' if finished.count > 1 else ''} on this host"
        alone = finished.alone
    slots = None if parallel is None else max(1, min(parallel, len(cells)))
    one_by_one = imports + math.fsum(times)
    at_most = one_by_one if alone and slots is not None and slots > 1 else None
    return Estimate(
        len(cells),
        total,
        imports + _with_workers(times, slots or 1),
        slots,
        at_most,
        max(times),
        source,
        problem=run_sizes.problem,
        sizes=sizes,
    )


def _with_workers(times: Sequence[float], workers: int) -> float:
    """Return the seconds until the last cell has ended where each worker takes the next one when it is free."""
    free_at = [0.0] * workers
    for seconds in times:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


def _finished(plan: SweepPlan, cells: Sequence[Cell], sizes: RunSizes) -> list[float] | None:
    """Seconds of each cell from finished runs; None where one of the cells has no comparable run."""
    times = []
    for cell in cells:
        variant = plan.variants[cell.variant]
        flops = sizes.flops(cell.variant)
        if own := sizes.finished.seconds.get(cell.run.partition("/")[0].rpartition("-")[2]):
            seconds: float | None = statistics.fmean(own)
        elif flops:
            steps = sizes.steps(variant.config)
            seconds = sizes.finished.of_about_size(flops, steps, variant.choices.get("trainer"))
        else:
            seconds = None
        if seconds is None:
            return None
        times.append(seconds)
    return times


def _measured(
    plan: SweepPlan,
    cells: Sequence[Cell],
    flops: Sequence[float | None],
    data: DataReader | None,
    measured: Callable[[Variant], MeasuredRun | None] | None,
) -> tuple[list[float], float, list[str]] | None:
    """Seconds of each cell from the first steps of one or two arms, those of the imports before the first cell, and the
    names of the arms; None where unmeasured.
    """
    if data is None or measured is None:
        return None
    sizes = [size for size in flops if size]
    chosen = [0]
    if len(sizes) == len(flops) and max(sizes) > _UNEQUAL * min(sizes):
        chosen = [sizes.index(min(sizes)), sizes.index(max(sizes))]
    points: list[tuple[float | None, float]] = []  # FLOPs and seconds of a whole run
    arms = []
    imports = 0.0
    for index in chosen:
        variant = plan.variants[cells[index].variant]
        if data.read(variant.config).train_samples is None or (run := measured(variant)) is None:
            continue
        points.append((flops[index], run.seconds(variant.config, data.splits(variant.config)[1])))
        imports = max(imports, run.imports)
        arms.append(variant.arm)
    if not points:
        return None
    return [_seconds(size, points) for size in flops], imports, arms


def _seconds(size: float | None, points: Sequence[tuple[float | None, float]]) -> float:
    """The time of a run of so many FLOPs: in proportion to one point, or on the line through two."""
    (first, seconds), *others = points
    if not size or not first:
        return seconds
    for last, most in others:
        if last:
            return seconds + (most - seconds) * (size - first) / (last - first)
    return seconds * size / first


def seconds_left(runs: Mapping[str, PlannedRun], parallel: int, sizes: Mapping[str, float]) -> float | None:
    """Return the seconds until all open runs have ended, from those that have ended or have taken first steps.

    A run takes the mean time of those that are nearest to it in FLOPs. None where one has no other within a factor of
    `_COMPARABLE`.

    sizes: FLOPs of training by run; runs whose size is unknown count as equal
    """
    share = min(1.0, parallel / max(1, sum(run.submitted for run in runs.values())))  # of stacked runs in a process
    known: dict[str, float] = {}
    for key, run in runs.items():
        if run.now.state == "done" and run.seconds is not None:
            known[key] = run.seconds
        elif (whole := run.expected_seconds()) is not None:
            known[key] = share * whole
    left = []
    for key, run in runs.items():
        if not run.open:
            continue
        seconds = known.get(key) or _by_nearest(key, known, sizes)
        if seconds is None:
            return None
        spent = share * (time.monotonic() - run.started) if run.submitted and run.started else 0.0
        left.append(max(0.0, seconds - spent))
    return _with_workers(left, parallel) if left else 0.0


def _by_nearest(key: str, known: Mapping[str, float], sizes: Mapping[str, float]) -> float | None:
    size = sizes.get(key)
    if size is None or any(other not in sizes for other in known):
        return statistics.fmean(known.values()) if known else None
    distances = {other: abs(math.log(sizes[other] / size)) for other in known}
    if not distances or min(distances.values()) > math.log(_COMPARABLE):
        return None
    nearest = [other for other in known if math.isclose(distances[other], min(distances.values()), abs_tol=0.01)]
    scaled = [known[other] * math.sqrt(size / sizes[other]) for other in nearest]
    return statistics.fmean(scaled)


def format_duration(seconds: float) -> str:
    """A duration in rounded seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# Compares the time that a sweep was announced to take with the time that it took.
#
# The time taken is that of the command, from the announcement to its end: the runs, the start of their processes, the
# comparison and the page. The estimate is made of runs alone, so the ratio shows what it leaves out.

FILE = "time.json"
_KEPT = 50  # records, the newest


class TimeRecord(TypedDict):
    """One command of a sweep in `time.json`: the time that was announced and the time that it took."""

    ended: str
    cells: int
    parallel: int | None
    announced_seconds: float | None
    announced_at_most_seconds: float | None
    taken_seconds: float
    ratio: float | None


def record_time(folder: Path, announced: Estimate, seconds: float, *, at_most: bool = False) -> str | None:
    """Append a record to `time.json` in a sweep's folder and return a line for the end of the command.

    None where nothing was left to run: there is nothing to compare then. Raises OSError.

    seconds: that the command took since the announcement
    at_most: whether more runs were announced than may be necessary, as for a search
    """
    if not announced.cells:
        return None
    ratio = None if not announced.seconds else seconds / announced.seconds
    record: TimeRecord = {
        "ended": now(),
        "cells": announced.cells,
        "parallel": announced.parallel,
        "announced_seconds": announced.seconds,
        "announced_at_most_seconds": announced.seconds if at_most else announced.at_most,
        "taken_seconds": seconds,
        "ratio": ratio,
    }
    with exclusive(folder):
        write_json(folder / FILE, {"commands": [*read_times(folder), record][-_KEPT:]})
    if announced.seconds is None or ratio is None:
        return f"took {format_duration(seconds)}; no time was announced, because none of its cells had been measured"
    bound = "at most" if at_most else "about"
    return (
        f"took {format_duration(seconds)}, announced were {bound} {format_duration(announced.seconds)}: "
        f"{ratio:.2f} times as long"
    )


def read_times(folder: Path) -> list[TimeRecord]:
    """The records of earlier commands, the oldest first; none where the file is missing or damaged."""
    try:
        records = read_json(folder / FILE)["commands"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return list(filter(lambda record: isinstance(record, dict), records)) if isinstance(records, list) else []
