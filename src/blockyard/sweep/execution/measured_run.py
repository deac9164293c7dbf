"""The times of the first steps of arms, which a dry run measures and a sweep reads."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from blockyard.atomic_files import read_json, write_json
from blockyard.engine.baselines import compute_baselines
from blockyard.runs.identity import identity
from blockyard.sweep.cells import Variant
from blockyard.sweep.execution.step_times import MeasuredRun
from blockyard.sweep.plan.sweep_plan import SweepPlan

if TYPE_CHECKING:
    from blockyard.engine.data_reader import DataReader

FILE = "measured.json"


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
