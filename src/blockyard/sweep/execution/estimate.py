"""Estimates the cost of the cells that are left: FLOPs, and time from finished runs on this host or from first steps.

FLOPs of training are three times the FLOPs of the forward pass (`plan.sizes`). The number of samples of an epoch comes
from the data, which is read, or from a finished run on the same data.

The time of a cell is the time of finished runs of the same arm, else of finished runs of about its size
(`_COMPARABLE`). Without such runs it follows from the first steps of an arm. A dry run measures them for a few seconds
and keeps them beside the plan: for the first arm, or where arms differ in FLOPs for the smallest and the largest one,
with a straight line between them. A sweep that starts without all of these is timed by its own first steps
(`seconds_left`). Evaluations and the start of a run count everywhere. Runs that were measured alone do not show how
parallel cells share cores, caches and memory. The time is then followed by its upper bound, one cell after another.
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
from typing import TYPE_CHECKING

from blockyard.atomic_files import read_json
from blockyard.config.size_matching import ModelSizes
from blockyard.config.tree import Node
from blockyard.errors import UserError
from blockyard.runs.folder import RUN, SUMMARY
from blockyard.runs.status import read_status
from blockyard.runs.store import Entry, runs
from blockyard.sweep.cell.states import PlannedRun, duration
from blockyard.sweep.cells import Cell, Variant
from blockyard.sweep.plan.sizes import TRAINING, training_samples
from blockyard.sweep.plan.sweep_plan import SweepPlan

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader
    from blockyard.sweep.execution.step_times import MeasuredRun

_RECENT = 200  # finished runs that are read, the newest
_NEAREST = 3
_COMPARABLE = 3.0  # ratio of FLOPs, and of steps, up to which the time of one run follows from another's
_UNEQUAL = 1.25  # ratio of FLOPs from which two arms are measured
_LATER = "unknown until a cell has taken its first steps"


@dataclass
class Estimate:
    """The cost of cells.

    flops: of training all of them, None where unknown
    seconds: with `parallel` cells at a time, or one after another where `parallel` is None; None where unknown
    at_most: seconds if parallel cells slow each other down until they gain nothing; None where finished runs show this
    longest: seconds of the longest cell
    source: the origin of the time
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
        flops = "FLOPs unknown"
        if self.flops is not None:
            flops = f"{self.flops:.2g} training FLOPs"
        if self.seconds is not None:
            cost = f"{flops}, {self.time} ({self.source})"
        elif self.flops is None and not self.problem:
            cost = f"FLOPs and time {_LATER}"
        else:
            cost = f"{flops}, time {_LATER}"
        problem = f"; the size of a model is unknown: {self.problem}" if self.problem else ""
        return f"{self.cells} to run: {cost}{problem}"

    @property
    def time(self) -> str:
        """The time as text, with the number of cells in parallel."""
        assert self.seconds is not None
        if self.parallel is not None:
            shared = ""
            if self.at_most is not None:
                shared = f", up to {format_duration(self.at_most)} if they slow each other down,"
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
    """Return the cost of `cells`, the ones still to run.

    parallel: how many run at the same time; None where a queue decides
    data: has read the data of the cells, and knows how many samples an epoch has
    measured: returns the times of an arm's first steps; called where no finished run is comparable
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
    if times is not None:
        plural = "s" if finished.count > 1 else ""
        source = f"from {finished.count} finished run{plural} on this host"
        alone = finished.alone
    else:
        from_steps = _measured(plan, cells, flops, data, measured)
        if from_steps is None:
            return Estimate(len(cells), total, None, parallel, problem=run_sizes.problem, sizes=sizes)
        times, imports, arms = from_steps
        source = f"from the first steps of {' and '.join(arms)}"
        alone = True
    slots = None if parallel is None else max(1, min(parallel, len(cells)))
    # Runs that were alone do not show how parallel ones slow each other down: at worst they gain nothing.
    at_most = None
    if alone and slots is not None and slots > 1:
        at_most = imports + math.fsum(times)
    return Estimate(
        cells=len(cells),
        flops=total,
        seconds=imports + _with_workers(times, slots or 1),
        parallel=slots,
        at_most=at_most,
        longest=max(times),
        source=source,
        problem=run_sizes.problem,
        sizes=sizes,
    )


def seconds_left(runs: Mapping[str, PlannedRun], parallel: int, sizes: Mapping[str, float]) -> float | None:
    """Return the seconds until all open runs have ended, from runs that have ended or have taken first steps.

    A run takes the mean time of the runs nearest to it in FLOPs. None where one has no other within a factor of
    `_COMPARABLE`.

    sizes: FLOPs of training by run; runs of unknown size count as equal
    """
    # More runs than processes are stacked, and each has its share of the seconds of its process.
    share = min(1.0, parallel / max(1, sum(run.submitted for run in runs.values())))
    seconds_by_key: dict[str, float] = {}
    for key, run in runs.items():
        if run.now.state == "done" and run.seconds is not None:
            seconds_by_key[key] = run.seconds
            continue
        expected = run.expected_seconds()
        if expected is not None:
            seconds_by_key[key] = share * expected
    left = []
    for key, run in runs.items():
        if not run.open:
            continue
        seconds = seconds_by_key.get(key) or _by_nearest(key, seconds_by_key, sizes)
        if seconds is None:
            return None
        spent = share * (time.monotonic() - run.started) if run.submitted and run.started else 0.0
        left.append(max(0.0, seconds - spent))
    if not left:
        return 0.0
    return _with_workers(left, parallel)


def format_duration(seconds: float) -> str:
    """Return a duration in rounded seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class RunTime:
    """The time of a run in seconds.

    start: to its first step
    work: from its first step to its end, evaluations included
    flops: of its training
    steps: of the optimizer, None where unknown
    trainer: the choice of this family
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

        The time of a step lies between a constant, for Python and the start of kernels, and a time in proportion to
        its FLOPs, for arithmetic. The geometric mean of both is at most the square root of `_COMPARABLE` off.
        """
        step_ratio = steps / self.steps if steps and self.steps else 1.0
        flops_ratio = flops / self.flops / step_ratio  # of a step
        return self.start + self.work * step_ratio * math.sqrt(flops_ratio)


@dataclass
class FinishedRuns:
    """The newest runs below `outputs` that were finished on this host.

    seconds: of each run from its start to its end, by identity
    times: of the runs from which the time of others follows, so none of `debug`
    train_sizes: samples of the training split by identity, with a run that has them
    intervals: start and end of each run, in ISO 8601
    """

    count: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    times: list[RunTime] = field(default_factory=list)
    train_sizes: dict[str, tuple[Entry, int]] = field(default_factory=dict)
    intervals: list[tuple[str, str]] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """True if no two of the runs ran at the same time, so that they do not show how runs slow each other down."""
        ordered = sorted(self.intervals)  # times of one format sort as text
        if not ordered:
            return False
        return all(ended <= next_started for (_, ended), (next_started, _) in pairwise(ordered))

    @classmethod
    def read(cls, plan: SweepPlan) -> FinishedRuns:
        """Read summaries; runs without a complete one are skipped."""
        finished = cls()
        for entry in runs(plan.outputs)[:_RECENT]:
            try:
                summary = read_json(entry.path / SUMMARY)
                facts = read_json(entry.path / RUN)
                if facts["host"]["name"] != socket.gethostname() or not summary["seconds"] > 0:
                    continue
                identity = str(facts["identity"])
                flops = float(summary["flops_per_sample"]["training"]) * float(summary["samples"])
                training = float(summary["seconds"])
                status = read_status(entry.path)
                # The status has the last attempt alone, the summary the training of all attempts without the rest.
                seconds = max(training, duration(status) or 0.0)
                # In a run of `blockyard train`, the first step waited for the imports of its process, too.
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
        comparable = [run for run in self.times if run.trainer == trainer and run.comparable(flops, steps)]
        if not comparable:
            return None
        nearest = sorted(comparable, key=lambda run: abs(math.log(run.flops / flops)))[:_NEAREST]
        return statistics.median(run.scaled(flops, steps) for run in nearest)

    def train_size(self, data_key: str) -> int | None:
        """Return the samples of the training split of a finished run on the same data, or None."""
        for entry, size in self.train_sizes.values():
            try:
                if _data_key(entry.folder.config) == data_key:
                    return size
            except (UserError, OSError):  # a damaged config
                continue
        return None


@dataclass
class RunSizes:
    """Computes the FLOPs of whole runs. data: has read the data of the cells; None where they are not read"""

    plan: SweepPlan
    finished: FinishedRuns
    data: DataReader | None = None
    models: ModelSizes = field(default_factory=ModelSizes)
    _flops: dict[str, float | None] = field(default_factory=dict)
    _train_sizes: dict[str, int | None] = field(default_factory=dict)

    @property
    def problem(self) -> str | None:
        """The reason why the size of a model is unknown, or None."""
        problems = list(self.models.failed.values())
        if not problems:
            return None
        more = f" and {len(problems) - 1} more of the kind" if len(problems) > 1 else ""
        return f"{problems[0]}{more}"

    def flops(self, variant: str) -> float | None:
        """Return the FLOPs of training one run of a variant; None where unknown."""
        if variant not in self._flops:
            config = self.plan.variants[variant].config
            forward = self._forward(config)
            samples = self.samples(config)
            self._flops[variant] = None
            if forward is not None and samples is not None:
                self._flops[variant] = float(TRAINING * forward * samples)
        return self._flops[variant]

    def samples(self, config: Node) -> float | None:
        """Return the samples that training processes; None where the length of an epoch, or of the run, is unknown."""
        trainer = config["trainer"]
        if trainer.get("max_seconds") is not None:
            return None
        samples = training_samples(config, lambda: self._train_size(config))
        flops, forward = trainer.get("max_flops"), self._forward(config)
        if flops is None or not forward:
            return samples
        batch_size = config["data"]["batch_size"]
        paid = float(flops // (TRAINING * forward * batch_size) * batch_size)
        return paid if samples is None else min(samples, paid)

    def _forward(self, config: Node) -> int | None:
        """Return the FLOPs of the forward pass of a sample; None where they cannot be counted."""
        return self.models.measure(config, "flops")

    def steps(self, config: Node) -> float | None:
        """Return the optimizer steps of a whole run; None where the length of an epoch is unknown."""
        samples = self.samples(config)
        if samples is None:
            return None
        return samples / config["data"]["batch_size"]

    def _train_size(self, config: Node) -> int | None:
        key = _data_key(config)
        if key not in self._train_sizes:
            samples = None if self.data is None else self.data.read(config).train_samples
            self._train_sizes[key] = self.finished.train_size(key) if samples is None else samples
        return self._train_sizes[key]


def _data_key(config: Node) -> str:
    """Return a text that is equal for configs that read the same data."""
    return json.dumps([config.get(key) for key in ("data", "tokenizer", "source_tokenizer")], sort_keys=True)


def _with_workers(times: Sequence[float], workers: int) -> float:
    """Return the seconds until the last cell has ended where each worker takes the next one when it is free."""
    free_at = [0.0] * workers  # a heap: the worker that is free first is at index 0
    for seconds in times:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


def _finished(plan: SweepPlan, cells: Sequence[Cell], sizes: RunSizes) -> list[float] | None:
    """Return the seconds of each cell from finished runs; None where one of the cells has no comparable run."""
    times = []
    for cell in cells:
        variant = plan.variants[cell.variant]
        flops = sizes.flops(cell.variant)
        identity = cell.run.partition("/")[0].rpartition("-")[2]
        same_run = sizes.finished.seconds.get(identity)  # under any seed
        seconds: float | None = None
        if same_run:
            seconds = statistics.fmean(same_run)
        elif flops:
            steps = sizes.steps(variant.config)
            seconds = sizes.finished.of_about_size(flops, steps, variant.choices.get("trainer"))
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
    """Return the seconds of each cell from the first steps of one or two arms, of the imports, and the arms' names.

    None where nothing is measured.
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
        run = None if data.read(variant.config).train_samples is None else measured(variant)
        if run is None:
            continue
        points.append((flops[index], run.seconds(variant.config, data.splits(variant.config)[1])))
        imports = max(imports, run.imports)
        arms.append(variant.arm)
    if not points:
        return None
    return [_seconds(size, points) for size in flops], imports, arms


def _seconds(size: float | None, points: Sequence[tuple[float | None, float]]) -> float:
    """Return the time of a run with `size` FLOPs: in proportion to one point, or on the line through two.

    points: FLOPs and seconds of measured runs
    """
    (first_size, first_seconds), *others = points
    if not size or not first_size:
        return first_seconds
    for other_size, other_seconds in others:
        if other_size:
            slope = (other_seconds - first_seconds) / (other_size - first_size)
            return first_seconds + slope * (size - first_size)
    return first_seconds * size / first_size


def _by_nearest(key: str, seconds_by_key: Mapping[str, float], sizes: Mapping[str, float]) -> float | None:
    """Return the seconds of a run by the known ones nearest in FLOPs; None where none is comparable."""
    if not seconds_by_key:
        return None
    size = sizes.get(key)
    if size is None or any(other not in sizes for other in seconds_by_key):
        return statistics.fmean(seconds_by_key.values())
    distances = {other: abs(math.log(sizes[other] / size)) for other in seconds_by_key}
    least = min(distances.values())
    if least > math.log(_COMPARABLE):
        return None
    nearest = [other for other, distance in distances.items() if math.isclose(distance, least, abs_tol=0.01)]
    # As in `RunTime.scaled`, for equal numbers of steps.
    scaled = [seconds_by_key[other] * math.sqrt(size / sizes[other]) for other in nearest]
    return statistics.fmean(scaled)
