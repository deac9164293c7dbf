"""Estimates the cost of the cells that are left: FLOPs, and time from finished runs on this host.

FLOPs of training are taken as three times those of the forward pass. Time is that of finished runs from start to end,
evaluations included: of the same arm with another seed, or in proportion to the FLOPs of runs of similar size. Nothing
is trained and no data is read: how many samples an epoch has comes from a finished run on the same data. What no
finished run tells is unknown until the first cell has finished.
"""

from __future__ import annotations

import json
import math
import socket
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.config.model_size import ModelSizes
from blockyard.errors import UserError
from blockyard.runs.folder import RUN, SUMMARY
from blockyard.runs.status import read_status
from blockyard.runs.store import Entry, runs
from blockyard.sweep.execution.cell_states import duration
from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan

_RECENT = 200  # finished runs that are read, the newest
_NEAREST = 3
_LATER = "unknown until the first cell has finished"


@dataclass(frozen=True)
class Estimate:
    """The cost of cells.

    flops: of training all of them, None where unknown
    seconds: with `parallel` cells at a time, or one after another where `parallel` is None; None where unknown
    longest: seconds of the longest cell; source: where the time comes from
    problem: why the size of a model is unknown, or None
    """

    cells: int
    flops: float | None = 0.0
    seconds: float | None = 0.0
    parallel: int | None = 1
    longest: float = 0.0
    source: str = ""
    problem: str | None = None

    def __str__(self) -> str:
        if not self.cells:
            return "nothing is left to run"
        flops = f"{self.flops:.2g} FLOPs" if self.flops is not None else "FLOPs unknown" if self.problem else None
        if self.seconds is None:
            cost = f"{flops}, time {_LATER}" if flops else f"FLOPs and time {_LATER}"
        else:
            cost = f"{flops or 'FLOPs unknown'}, {self._time()} ({self.source})"
        problem = f"; the size of a model is unknown: {self.problem}" if self.problem else ""
        return f"{self.cells} to run: {cost}{problem}"

    def _time(self) -> str:
        assert self.seconds is not None
        if self.parallel is not None:
            return f"about {format_duration(self.seconds)} with {self.parallel} in parallel"
        return (
            f"about {format_duration(self.seconds)} one after another, {format_duration(self.longest)} if all run in "
            "parallel; the queue decides how many do, unless executor.workers does"
        )


def estimate(plan: SweepPlan, cells: Sequence[Cell], *, parallel: int | None = 1) -> Estimate:
    """The cost of `cells`, which are those still to run.

    parallel: how many run at the same time; None where a queue decides
    """
    if not cells:
        return Estimate(0)
    finished = _FinishedRuns.read(plan)
    sizes = _RunSizes(plan, finished)
    flops = [sizes.flops(cell.variant) for cell in cells]
    available = [value for value in flops if value is not None]
    total = math.fsum(available) if len(available) == len(flops) else None
    rate = finished.rate([value for value in available if value])
    times = []
    for cell, size in zip(cells, flops, strict=True):
        size = size if size is not None else (statistics.fmean(available) if available else None)
        if own := finished.seconds.get(cell.run.partition("/")[0].rpartition("-")[2]):
            times.append(statistics.fmean(own))
        elif rate and size is not None:
            times.append(size / rate)
        else:
            return Estimate(len(cells), total, None, parallel, problem=sizes.problem)
    slots = None if parallel is None else max(1, min(parallel, len(cells)))
    source = f"from {finished.count} finished run{'s' if finished.count > 1 else ''} on this host"
    return Estimate(len(cells), total, math.fsum(times) / (slots or 1), slots, max(times), source, sizes.problem)


def format_duration(seconds: float) -> str:
    """A duration in rounded seconds, minutes or hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass
class _FinishedRuns:
    """The newest finished runs below `outputs` that were made on this host.

    seconds: of each run from its start to its end, by identity; speeds: (FLOPs, seconds) of each run
    train_sizes: samples of the training part by identity, with a run that has them
    """

    count: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    speeds: list[tuple[float, float]] = field(default_factory=list)
    train_sizes: dict[str, tuple[Entry, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, plan: SweepPlan) -> _FinishedRuns:
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
                seconds = max(training, duration(read_status(entry.path)) or 0.0)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            finished.count += 1
            finished.seconds.setdefault(identity, []).append(seconds)
            finished.speeds.append((flops, seconds))
            size = (summary.get("data") or {}).get("train")
            if isinstance(size, int):
                finished.train_sizes.setdefault(identity, (entry, size))
        return finished

    def rate(self, sizes: Sequence[float]) -> float | None:
        """FLOPs a second of the runs that are nearest in size: small runs are slower than large ones."""
        useful = [run for run in self.speeds if run[0] > 0]
        if not sizes or not useful:
            return None
        middle = math.log(statistics.median(sizes))
        nearest = sorted(useful, key=lambda run: abs(math.log(run[0]) - middle))[:_NEAREST]
        return statistics.median(flops / seconds for flops, seconds in nearest)

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
class _RunSizes:
    """FLOPs of whole runs."""

    plan: SweepPlan
    finished: _FinishedRuns
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
            self._flops[variant] = None if forward is None or samples is None else 3.0 * forward * samples
        return self._flops[variant]

    def samples(self, config: dict[str, Any]) -> float | None:
        """Samples that training processes; None where the length of an epoch is unknown."""
        trainer, batch = config["trainer"], config["data"].get("batch_size")
        if not isinstance(batch, int):
            return None
        steps, epochs = trainer.get("max_steps"), trainer.get("max_epochs")
        limits = [float(steps)] if steps is not None else []
        if epochs is not None:
            length = self._train_size(config)
            per_epoch = [] if length is None else [max(1, length // batch)]
            per_epoch += [trainer[limit] for limit in ("limit_train", "overfit") if trainer.get(limit)]
            limits += [float(min(per_epoch) * epochs)] if per_epoch else []
        return min(limits) * batch if limits else None

    def _train_size(self, config: dict[str, Any]) -> int | None:
        key = _data_key(config)
        if key not in self._train_sizes:
            self._train_sizes[key] = self.finished.train_size(key)
        return self._train_sizes[key]


def _data_key(config: dict[str, Any]) -> str:
    """Equal for configs that read the same data."""
    return json.dumps([config.get(key) for key in ("data", "tokenizer", "source_tokenizer")], sort_keys=True)
