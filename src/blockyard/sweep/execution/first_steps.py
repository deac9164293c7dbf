"""Measures the first steps of an arm where no finished run is comparable, and what its whole run would take.

The steps are those of a run: the arm's config is trained in a temporary folder, with its evaluations cut to a few
batches, and left after a few seconds. The folder is removed.
"""

from __future__ import annotations

import copy
import importlib
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from blockyard.config.tree import Node
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.faults.interrupts import CODES, Paused
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.start import create_run
from blockyard.sweep.cell.execute import LOG, log_to_file
from blockyard.sweep.execution.measured_run import MeasuredRun, measured_batches
from blockyard.sweep.executor._fork_server import HEAVY

SECONDS = 3.0  # of steps that are measured
_STEPS = 100  # that are measured at most
_EVERY = 5  # steps between two evaluations
_NO_LOGGER = {"_target_": "blockyard.engine.loggers.none.NoLogger"}
_WARM = 2  # first steps that do not count: they allocate memory and choose kernels


@dataclass
class _Clock(RunCallback):
    """Notes when steps, evaluations and saving end, and leaves the run after `SECONDS`."""

    began: float = 0.0
    steps: list[float] = field(default_factory=list)
    evaluated: list[tuple[int, float]] = field(default_factory=list)  # after how many steps, and when
    total: int = 0
    steps_per_epoch: int = 1

    def on_run_start(self, state: RunState) -> None:
        self.began, self.total, self.steps_per_epoch = time.monotonic(), state.total, state.steps_per_epoch

    def on_step(self, state: RunState) -> None:
        self.steps.append(time.monotonic())
        enough = len(self.steps) >= _STEPS or self.steps[-1] - self.began > SECONDS
        if enough and len(self.steps) > _WARM + 1:
            raise Paused("measured")

    def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
        self.evaluated.append((len(self.steps), time.monotonic()))


def import_as_cells_do() -> None:
    """Import what the process that starts the cells has imported before the first one."""
    for module in HEAVY:
        importlib.import_module(module)


def measure(config: Node, choices: dict[str, str | None], threads: int | None) -> MeasuredRun | None:
    """Train an arm for about `SECONDS` and return what its parts take.

    None where it needs several processes, or is refused. `import_as_cells_do` comes before it.

    threads: CPU threads of a cell; None leaves them to the config
    """
    config = copy.deepcopy(config) | {"force": False, "logger": dict(_NO_LOGGER), "name": "measured"}
    trainer = config["trainer"]
    if int(trainer.get("devices") or 1) * int(trainer.get("num_nodes") or 1) > 1:
        return None
    trainer |= {"log_every": _EVERY, "eval_every": _EVERY, "limit_val": measured_batches(trainer), "limit_test": 1}
    if threads is not None:
        trainer["threads"] = threads
    clock = _Clock()
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
    return _parts(clock, began, measured_batches(trainer))


def _parts(clock: _Clock, began: float, batches: int) -> MeasuredRun | None:
    ended = dict(clock.evaluated)
    durations = [
        clock.steps[steps] - clock.steps[steps - 1]
        for steps in range(_WARM, len(clock.steps))
        if steps not in ended  # an evaluation and saving come between
    ]
    if not durations:
        return None
    step = statistics.median(durations)
    evaluations = [when - clock.steps[steps - 1] for steps, when in ended.items()]
    saves = [clock.steps[steps] - when - step for steps, when in ended.items() if steps < len(clock.steps)]
    return MeasuredRun(
        start=clock.began - began,
        step=step,
        # A forward pass without a backward one takes a third of a step.
        evaluation=statistics.median(evaluations) if evaluations else batches * step / 3,
        saving=max(0.0, statistics.median(saves)) if saves else 0.0,
        total=clock.total,
        steps_per_epoch=clock.steps_per_epoch,
    )
