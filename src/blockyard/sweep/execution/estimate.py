"""What a sweep will cost before it runs: FLOPs, and time from runs like these or from a short timing.

FLOPs of training are taken as three times those of the forward pass, without evaluations.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.config.build import Components
from blockyard.config.model_size import ModelSizes, describe_error
from blockyard.runs.folder import RUN, SUMMARY
from blockyard.runs.store import runs
from blockyard.sweep.plan.sweep_plan import Cell, SweepPlan

_RECENT = 200  # finished runs of the store that are looked at, the newest
_NEAREST = 3
_TIMED = 1.0  # seconds of timing, beyond two steps
_START = 1.0  # seconds that a cell takes besides its training
_READ = 30.0  # seconds of reading data, after which sizes are no longer looked up


@dataclass(frozen=True)
class Estimate:
    """What cells will cost.

    flops: of training all of them, None where unknown; source: of the time, and what is not known
    seconds: with `places` cells at once; one after another where nobody knows how many run together (None)
    longest: of one cell
    """

    cells: int
    flops: float | None
    seconds: float | None
    places: int | None
    source: str
    longest: float = 0.0

    def __str__(self) -> str:
        if not self.cells:
            return "nothing is left to run"
        flops = f"{self.flops:.2g} FLOPs" if self.flops is not None else "FLOPs unknown"
        return f"{self.cells} to run: {flops}, {self._took()} ({self.source})"

    def _took(self) -> str:
        if self.seconds is None:
            return "time unknown"
        if self.places is not None:
            return f"about {spoken(self.seconds)} with {self.places} at once"
        return (
            f"about {spoken(self.seconds)} one after another, {spoken(self.longest)} if all run together; "
            "how many do is for the queue to say, unless executor.workers does"
        )


@dataclass
class _Past:
    """A finished run of this host."""

    identity: str
    flops: float
    seconds: float


def estimate(plan: SweepPlan, cells: Sequence[Cell], *, places: int | None = 1, timed: bool = True) -> Estimate:
    """The cost of `cells`, which are those still to run.

    places: how many run together; None where nobody knows
    timed: whether a few training steps may be made where no finished run tells how fast this host is
    """
    if not cells:
        return Estimate(0, 0.0, 0.0, places, "")
    work = _Work(plan)
    flops = {key: work.flops(key) for key in {cell.variant for cell in cells}}
    known = [flops[cell.variant] for cell in cells]
    total = None if None in known else math.fsum(f for f in known if f is not None)
    past = _past(plan)
    same: dict[str, list[float]] = {}
    for run in past:
        same.setdefault(run.identity, []).append(run.seconds)
    rate, source = None, "no run of this host to go by"
    if past:
        rate, source = _rate(past, [f for f in known if f]), f"from {len(past)} finished runs on this host"
    elif timed and total is not None:
        rate, source = work.timed_rate(cells[0].variant)
    source += work.unknown()
    times, sizes = [], [f for f in known if f is not None]
    for cell, size in zip(cells, known, strict=True):
        own = same.get(cell.run.partition("/")[0].rpartition("-")[2])
        size = size if size is not None else (statistics.fmean(sizes) if sizes else None)
        if own:
            times.append(statistics.fmean(own))
        elif rate and size is not None:
            times.append(size / rate + _START)
        else:
            return Estimate(len(cells), total, None, places, source)
    at_once = None if places is None else max(1, min(places, len(cells)))
    return Estimate(len(cells), total, math.fsum(times) / (at_once or 1), at_once, source, max(times))


def spoken(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass
class _Work:
    plan: SweepPlan
    scales: ModelSizes = field(default_factory=ModelSizes)
    _sizes: dict[str, int | None] = field(default_factory=dict)
    _spent: float = 0.0
    _failed: dict[str, None] = field(default_factory=dict)

    def unknown(self) -> str:
        """Why a size is not known, as the end of a sentence; empty where all are."""
        why = [*self.scales.failed.values(), *self._failed]
        more = f" and {len(why) - 1} more of the kind" if len(why) > 1 else ""
        return f"; a size is not known: {why[0]}{more}" if why else ""

    def flops(self, key: str) -> float | None:
        """Of one whole run of a variant."""
        config = self.plan.variants[key].config
        forward, samples = self.scales.weigh(config, "flops"), self._samples(config)
        return None if forward is None or samples is None else 3.0 * forward * samples

    def timed_rate(self, key: str) -> tuple[float | None, str]:
        """FLOPs a second of a few training steps of a variant, in this process."""
        import torch

        config = self.plan.variants[key].config
        try:
            made = Components(config)
            splits, model = made.data.load(made.tokenizer), made.model(0).train()
            size = min(made.data.batch_size, len(splits.train))
            batch = made.objective.prepare(splits.train.batch(torch.arange(size), None))
            times: list[float] = []
            started = time.perf_counter()
            while len(times) < 3 or (len(times) < 20 and time.perf_counter() - started < _TIMED):
                before = time.perf_counter()
                made.objective.loss(model(**batch.arguments()), batch.target).backward()
                times.append(time.perf_counter() - before)
        except Exception as error:  # what a component of the user's own may raise; it is an estimate only
            return None, f"a step could not be timed: {describe_error(error)}"
        forward = self.scales.weigh(config, "flops")
        step = statistics.median(times[1:])
        return (3.0 * forward * size / step if forward else None), f"from {len(times)} steps timed on the CPU just now"

    def _samples(self, config: dict[str, Any]) -> float | None:
        trainer, batch = config["trainer"], config["data"].get("batch_size")
        if not isinstance(batch, int):
            return None
        steps, epochs = trainer.get("max_steps"), trainer.get("max_epochs")
        if epochs is None:
            return None if steps is None else float(steps * batch)
        length = self._length(config)
        if length is None:
            return None if steps is None else float(steps * batch)
        per_epoch = max(1, length // batch)
        for limit in ("limit_train", "overfit"):
            per_epoch = min(per_epoch, trainer.get(limit) or per_epoch)
        return float(min(per_epoch * epochs, steps or math.inf) * batch)

    def _length(self, config: dict[str, Any]) -> int | None:
        """Samples of the training part; None where reading it fails or reading has taken long enough."""
        key = json.dumps([config["data"], config["tokenizer"]], sort_keys=True)
        if key not in self._sizes and self._spent < _READ:
            before = time.monotonic()
            try:
                plan = Components(config)
                self._sizes[key] = len(plan.data.load(plan.tokenizer).train)
            except Exception as error:  # data that is not there yet, or of the user's own; `unknown` tells it
                self._sizes[key] = None
                self._failed[f"the data cannot be read yet ({describe_error(error)})"] = None
            self._spent += time.monotonic() - before
        return self._sizes.get(key)


def _past(plan: SweepPlan) -> list[_Past]:
    """The newest finished runs of the store that were made on this host and device."""
    import socket

    found = []
    for entry in runs(plan.outputs)[:_RECENT]:
        try:
            summary, facts = read_json(entry.path / SUMMARY), read_json(entry.path / RUN)
            if facts["host"]["name"] == socket.gethostname() and summary["seconds"] > 0:
                flops = float(summary["flops_per_sample"]["training"]) * float(summary["samples"])
                found.append(_Past(str(facts["identity"]), flops, float(summary["seconds"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _rate(past: list[_Past], sizes: list[float]) -> float | None:
    """FLOPs a second of the runs that are nearest in size: small runs are slower than large ones."""
    if not sizes:
        return None
    middle = math.log(statistics.median(sizes))
    useful = [run for run in past if run.flops > 0]
    nearest = sorted(useful, key=lambda run: abs(math.log(run.flops) - middle))[:_NEAREST]
    return statistics.median(run.flops / run.seconds for run in nearest) if nearest else None
