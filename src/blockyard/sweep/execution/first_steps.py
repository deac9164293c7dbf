"""Measures the first steps of an arm where no finished run is comparable.

The steps belong to a run: the arm's config is trained in a temporary folder, with its evaluations cut to a few
batches, and left after a few seconds. The folder is removed.

It is apart from `measured_run`, since a sweep reads measured times without importing the engine.
"""

from __future__ import annotations

import copy
import importlib
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from blockyard.config.tree import Node
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.faults.interrupts import CODES, Paused
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.start import create_run
from blockyard.sweep.cell.execute import LOG, log_to_file
from blockyard.sweep.execution.step_times import MeasuredRun, measured_batches
from blockyard.sweep.executor._fork_server import HEAVY

SECONDS = 3.0  # of measured steps
_MAX_STEPS = 100
_LONGEST = 10**9  # steps of a run that time ends
_EVERY = 5  # steps between two evaluations
_NO_LOGGER = {"_target_": "blockyard.engine.loggers.none.NoLogger"}
_WARM = 2  # first steps that do not count: they allocate memory and choose kernels


def import_as_cells_do() -> None:
    """Import the modules that the fork server imports before the first cell."""
    for module in HEAVY:
        importlib.import_module(module)


def measure(config: Node, choices: dict[str, str | None], threads: int | None) -> MeasuredRun | None:
    """Train an arm for about `SECONDS` and return the times of its parts. Call `import_as_cells_do` first.

    None where the arm needs several processes, or is refused.

    threads: CPU threads of a cell; None leaves them to the config
    """
    config = copy.deepcopy(config) | {"force": False, "logger": dict(_NO_LOGGER), "name": "measured"}
    trainer = config["trainer"]
    if int(trainer.get("devices") or 1) * int(trainer.get("num_nodes") or 1) > 1:
        return None
    trainer |= {"log_every": _EVERY, "eval_every": _EVERY, "limit_val": measured_batches(trainer), "limit_test": 1}
    if threads is not None:
        trainer["threads"] = threads
    limit = trainer.get("max_seconds")
    if limit is not None:  # the seconds that are measured may be more
        trainer |= {"max_seconds": None, "max_steps": trainer.get("max_steps") or _LONGEST}
    clock = _StepClock()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="blockyard-") as outputs:
        try:
            with (
                create_run(config | {"outputs": outputs}, command=["measure"], choices=choices) as folder,
                log_to_file(Path(outputs) / LOG),
            ):
                code = train(folder, callbacks={"clock": clock})
        except UserError:
            return None
    if code == CODES[signal.SIGINT]:
        raise KeyboardInterrupt
    if code == CODES[signal.SIGTERM]:
        raise SystemExit(code)
    run = _parts(clock, began, measured_batches(trainer))
    if run is None or limit is None:
        return run
    return replace(run, total=min(run.total, max(1, round(limit / run.step))))


@dataclass
class _StepClock(RunCallback):
    """Records the ends of steps and evaluations, and leaves the run after `SECONDS`.

    evaluated: number of steps before an evaluation -> the time of its end
    """

    began: float = 0.0
    steps: list[float] = field(default_factory=list)
    evaluated: dict[int, float] = field(default_factory=dict)
    total: int = 0
    steps_per_epoch: int = 1

    def on_run_start(self, state: RunState) -> None:
        self.began = time.monotonic()
        self.total = state.total
        self.steps_per_epoch = state.steps_per_epoch

    def on_step(self, state: RunState) -> None:
        self.steps.append(time.monotonic())
        enough = len(self.steps) >= _MAX_STEPS or self.steps[-1] - self.began > SECONDS
        if enough and len(self.steps) > _WARM + 1:
            raise Paused("measured")

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        self.evaluated[len(self.steps)] = time.monotonic()


def _parts(clock: _StepClock, began: float, batches: int) -> MeasuredRun | None:
    """Return the times of the parts of a run; None without a step that counts.

    began: the time before the run was created
    batches: of an evaluation
    """
    durations: list[float] = []
    for count in range(_WARM, len(clock.steps)):
        if count not in clock.evaluated:  # an evaluation and saving come between
            durations.append(clock.steps[count] - clock.steps[count - 1])
    if not durations:
        return None
    step = statistics.median(durations)
    evaluation = batches * step / 3  # a forward pass without a backward one takes a third of a step
    if clock.evaluated:
        evaluation = statistics.median(ended - clock.steps[count - 1] for count, ended in clock.evaluated.items())
    # The state is saved between an evaluation and the next step.
    savings = [
        clock.steps[count] - ended - step for count, ended in clock.evaluated.items() if count < len(clock.steps)
    ]
    saving = statistics.median(savings) if savings else 0.0
    return MeasuredRun(
        start=clock.began - began,
        step=step,
        evaluation=evaluation,
        saving=max(0.0, saving),  # less than nothing is noise of the step
        total=clock.total,
        steps_per_epoch=clock.steps_per_epoch,
    )
