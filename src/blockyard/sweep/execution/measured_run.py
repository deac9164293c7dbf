"""The times of an arm's first steps, which a dry run measures and a sweep reads, and the time of its whole run."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from blockyard.atomic_files import read_json, write_json
from blockyard.config.tree import Node
from blockyard.contracts import Splits
from blockyard.engine.baselines import compute_baselines
from blockyard.runs.identity import identity
from blockyard.sweep.cells import Variant
from blockyard.sweep.plan.sweep_plan import SweepPlan

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader

FILE = "measured.json"
_BATCHES = 4  # of an evaluation, so that a cost independent of their number counts little in the time of one


@dataclass(frozen=True)
class MeasuredRun:
    """The parts of a run's time, in seconds.

    start: before the first step
    step: of one step
    evaluation: of a few batches (`measured_batches`)
    saving: of the state, after an evaluation
    total: steps of the whole run
    steps_per_epoch: of the whole run
    imports: of the modules, once for all runs of a sweep; 0 where an earlier measurement had imported them
    """

    start: float
    step: float
    evaluation: float
    saving: float
    total: int
    steps_per_epoch: int
    imports: float = 0.0

    def seconds(self, config: Node, splits: Splits) -> float:
        """Return the time of a whole run."""
        trainer = config["trainer"]
        batch_size = int(config["data"].get("eval_batch_size") or 1)
        num_evaluations = math.ceil(self.total / (trainer.get("eval_every") or self.steps_per_epoch))
        val_batches = math.ceil(len(splits.validation) / batch_size)
        test_batches = math.ceil(len(splits.test) / batch_size)
        # `evaluation` is the time of this many batches.
        batches_in_unit = max(1, min(measured_batches(trainer), val_batches))
        batches = num_evaluations * min(val_batches, trainer.get("limit_val") or math.inf)
        batches += min(test_batches, trainer.get("limit_test") or math.inf)
        evaluating = batches / batches_in_unit * self.evaluation
        return self.start + self.total * self.step + evaluating + num_evaluations * self.saving


def measured_batches(trainer: Node) -> int:
    """Return the number of batches in an evaluation that is measured."""
    return min(_BATCHES, trainer.get("limit_val") or _BATCHES)


class MeasuredRuns:
    """The measured first steps of a plan's arms, kept in `measured.json` in the sweep's folder.

    threads: CPU threads of a cell; other threads, or another machine, are measured again
    data: has read the data of the cells. With it arms are measured now, and the baselines of their data computed, which
        the first cell would compute. Without it the times come from the file
    """

    def __init__(self, plan: SweepPlan, threads: int | None, data: DataReader | None) -> None:
        self._plan = plan
        self._setup = {"host": socket.gethostname(), "threads": threads}
        self._threads = threads
        self._data = data
        self._runs = self._read() if data is None else {}

    def __call__(self, variant: Variant) -> MeasuredRun | None:
        """Return the times of an arm, or None where they are unknown."""
        key = identity(variant.config)
        if key not in self._runs and self._data is not None:
            # The imports count: the server that forks the cells needs their time, too.
            began = time.monotonic()
            from blockyard.sweep.execution.first_steps import import_as_cells_do, measure

            import_as_cells_do()
            imports = time.monotonic() - began
            run = measure(variant.config, variant.choices, self._threads)
            self._runs[key] = None if run is None else replace(run, imports=imports)
            compute_baselines(variant.config, *self._data.splits(variant.config), Path(self._plan.outputs))
            self._write()
        return self._runs.get(key)

    def _read(self) -> dict[str, MeasuredRun | None]:
        try:
            content = read_json(self._plan.folder / FILE)
            if content["setup"] != self._setup:
                return {}
            return {**TypeAdapter(dict[str, MeasuredRun]).validate_python(content["runs"])}
        except (OSError, ValueError, KeyError, TypeError):  # missing or damaged: it is measured again
            return {}

    def _write(self) -> None:
        runs = {key: asdict(run) for key, run in self._runs.items() if run is not None}
        with contextlib.suppress(OSError):  # the estimate is printed all the same
            self._plan.folder.mkdir(parents=True, exist_ok=True)
            write_json(self._plan.folder / FILE, {"setup": self._setup, "runs": runs})
