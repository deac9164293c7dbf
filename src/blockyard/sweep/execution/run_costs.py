"""FLOPs of whole runs, and what finished runs on this host took."""

from __future__ import annotations

import json
import math
import socket
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import read_json
from blockyard.config.model_size import ModelSizes
from blockyard.errors import UserError
from blockyard.runs.folder import RUN, SUMMARY
from blockyard.runs.status import read_status
from blockyard.runs.store import Entry, runs
from blockyard.sweep.execution.cell_states import duration
from blockyard.sweep.plan.sweep_plan import SweepPlan

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader

_RECENT = 200  # finished runs that are read, the newest
_NEAREST = 3


@dataclass
class FinishedRuns:
    """The newest finished runs below `outputs` that were made on this host.

    seconds: of each run from its start to its end, by identity; speeds: (FLOPs, seconds) of each run
    train_sizes: samples of the training part by identity, with a run that has them
    times: when each run started and ended, in ISO 8601
    """

    count: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    speeds: list[tuple[float, float]] = field(default_factory=list)
    train_sizes: dict[str, tuple[Entry, int]] = field(default_factory=dict)
    times: list[tuple[str, str]] = field(default_factory=list)

    @property
    def alone(self) -> bool:
        """Whether no two of the runs ran at the same time, so that they do not show how runs slow each other down."""
        ordered = sorted(self.times)
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
            except (OSError, ValueError, KeyError, TypeError):
                continue
            finished.count += 1
            if status.started and status.ended:
                finished.times.append((status.started, status.ended))
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
            read = None if self.data is None else self.data.read(config).train_samples
            self._train_sizes[key] = self.finished.train_size(key) if read is None else read
        return self._train_sizes[key]


def _data_key(config: dict[str, Any]) -> str:
    """Equal for configs that read the same data."""
    return json.dumps([config.get(key) for key in ("data", "tokenizer", "source_tokenizer")], sort_keys=True)
