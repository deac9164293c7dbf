"""Runs the missing cells of a plan: one loop that submits cells and collects their outcomes.

The run folders are the only record. So the same command after a crash, a kill or a stop runs the cells that are
left, two planners on one output folder share the work, and a run that two sweeps contain runs once.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from blockyard.engine.faults.interrupts import CODES
from blockyard.runs.changed_data import refuse_changed_data
from blockyard.runs.folder import RunFolder
from blockyard.sweep.cell.states import CellState, PlannedRun, read_state
from blockyard.sweep.cells import BUSY, Cell, Outcome, Task
from blockyard.sweep.execution.estimate import Estimate
from blockyard.sweep.execution.tables import SweepScreen
from blockyard.sweep.executor.base import Executor
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.stopping import due

_POLL = 0.5  # seconds that one round of the loop waits for an ended cell
_LOOK = 2.0  # seconds between two looks at a run that another process holds
_ALIKE = 2  # cells that bad input ended for one reason before any other cell ended: the others would end like them


def run_plan(
    plan: SweepPlan,
    executor: Executor,
    *,
    retry: bool = False,
    say: Callable[[str], object] = print,
    live: bool = True,
    announced: Estimate | None = None,
) -> int:
    """Run the cells of a plan that are not done. Return 0 all done, 1 some failed, 130 Ctrl-C, 143 SIGTERM.

    retry: run cells again that failed before
    say: prints a line
    live: keep a table on standard error if that is a terminal
    announced: the estimate of the cells; one without a time gets it from their first steps
    """
    with StopSignals() as signals, SweepScreen(plan, say, live, announced) as screen:
        loop = _Loop(plan, executor, retry, screen, signals)
        executor.home = plan.folder
        loop.add_due()
        loop.check_data()
        if loop.unfinished:
            with contextlib.suppress(KeyboardInterrupt), executor:
                loop.work()
        else:
            screen.show(loop.runs, 1, last=True)
        if signals.signum is not None:
            screen.report_stop(signals.signum)
            return signals.code
    screen.summary(loop.runs)
    if all(run.now.state == "done" for run in loop.runs.values()):
        return 0
    return 1


@dataclass
class _Loop:
    """Runs the due cells of a plan with an executor that the caller has entered.

    runs: of the due cells, by folder
    ready: runs that may be submitted
    elsewhere: runs that another process holds
    left: runs that may be in a job of an earlier planner
    ended: exit code and reason of the runs of this loop
    """

    plan: SweepPlan
    executor: Executor
    retry: bool
    screen: SweepScreen
    signals: StopSignals
    runs: dict[str, PlannedRun] = field(default_factory=dict)
    ready: deque[str] = field(default_factory=deque)
    elsewhere: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    ended: list[tuple[int, str | None]] = field(default_factory=list)

    def add_due(self) -> None:
        """Add the cells that have become due."""
        new: dict[str, PlannedRun] = {}
        while True:  # cells that are done already may make others due
            num_runs = len(self.runs)
            for cell in in_run_order(self.plan, cells_to_run(self.plan, self.runs)):
                if cell.run not in self.runs:
                    path = self.plan.path(cell)
                    run = PlannedRun([], path, self.plan.config(cell), self._state(path))
                    # Cells that wait for this one are due although it has failed.
                    run.ended = run.now.state == "failed" and not self.retry
                    new[cell.run] = run
                    self.runs[cell.run] = run
                if cell not in self.runs[cell.run].cells:
                    self.runs[cell.run].cells.append(cell)
            if len(self.runs) == num_runs:
                break
        self.screen.total = len(self.runs)
        for key, run in new.items():
            if run.now.state == "running":
                self.left.add(key)
            elif run.ended:
                self.screen.report(run)
            elif run.now.state == "done":
                self.screen.count += 1
            else:
                self.ready.append(key)

    def check_data(self) -> None:
        """Raise UserError where finished runs were trained on other data than their files hold now."""
        by_data: dict[str, PlannedRun] = {}  # the first run of each
        for run in self.runs.values():
            if run.now.state == "done":
                by_data.setdefault(json.dumps(run.config.get("data"), sort_keys=True, default=str), run)
        for run in by_data.values():
            refuse_changed_data(RunFolder.open(run.path), run.config)

    @property
    def unfinished(self) -> bool:
        """True while a run is left to start or to wait for."""
        return bool(self.ready or self.left or self.elsewhere or any(run.submitted for run in self.runs.values()))

    def work(self) -> None:
        """Run cells until none is due or a signal stops the sweep."""
        while self.unfinished and self.signals.signum is None:
            self._submit()
            self.screen.show(self.runs, self.executor.parallel)
            outcomes = self.executor.poll(_POLL)
            for outcome in outcomes:
                self._finish(outcome)
            self._look_elsewhere()
            # In these sweeps a cell that ends can make others due while some still run.
            chooses = bool(self.plan.question.get("tune_seeds")) and not self.plan.question.get("until")
            if not self._all_refused() and (not self.unfinished or (outcomes and chooses)):
                self.add_due()
        self.screen.show(self.runs, self.executor.parallel, last=True)

    def _submit(self) -> None:
        while self.left:
            key = self.left.pop()
            if self.executor.attach(self._task(key)):
                self._mark_submitted(self.runs[key])
            else:
                self.elsewhere.add(key)
        submitted = sum(run.submitted for run in self.runs.values())
        while self.ready and submitted < self.executor.capacity:
            key = self.ready.popleft()
            run = self.runs[key]
            run.now = self._state(run.path)  # another planner on the same folder may have run it since
            if run.now.state == "running":
                self.left.add(key)
            elif run.now.state == "done":
                self.screen.report(run)
            else:
                self.executor.submit(self._task(key))
                self._mark_submitted(run)
                submitted += 1

    def _state(self, path: Path) -> CellState:
        return read_state(path, self.plan.metric_names)

    @staticmethod
    def _mark_submitted(run: PlannedRun) -> None:
        run.submitted = True
        run.started = time.monotonic()

    def _task(self, key: str) -> Task:
        run = self.runs[key]
        variant = self.plan.variants[run.cells[0].variant]
        command = tuple(self.plan.facts.get("command") or ())
        return Task(key, run.config, variant.choices, command, self.retry)

    def _finish(self, outcome: Outcome) -> None:
        run = self.runs[outcome.key]
        run.submitted = False
        if outcome.code == BUSY:  # another process was faster
            self.elsewhere.add(outcome.key)
            return
        run.ended = True
        run.now = self._state(run.path)
        run.seconds = run.now.seconds
        if run.now.state != "done":  # a run that is done stays done, however its process ended afterwards
            # A run that its executor refuses has no folder; for this command it has failed.
            stopped = outcome.code in CODES.values() or run.now.state == "interrupted"
            reason = outcome.reason or run.now.reason
            run.now = CellState("interrupted" if stopped else "failed", reason, step=run.now.step)
        self.screen.report(run, again=outcome.code == 2 and (2, run.now.reason) in self.ended)
        self.ended.append((outcome.code, run.now.reason))
        if self.ready and self._all_refused():
            self.screen.say(
                f"stopped: bad input ended the first {len(self.ended)} cells for one reason; {len(self.ready)} cells "
                "were not started"
            )
            self.ready.clear()

    def _all_refused(self) -> bool:
        """Return whether all ended runs of this loop were refused before their first step, for one reason."""
        return len(self.ended) >= _ALIKE and len(set(self.ended)) == 1 and self.ended[0][0] == 2

    def _look_elsewhere(self) -> None:
        """Look at runs that another process holds. A run that it left unfinished becomes ready."""
        for key in list(self.elsewhere):
            run = self.runs[key]
            if time.monotonic() - run.last_look < _LOOK:
                continue
            run.last_look = time.monotonic()
            run.now = self._state(run.path)
            if run.now.state == "running":
                continue
            self.elsewhere.discard(key)
            if run.now.state in ("done", "failed"):
                run.ended = True
                self.screen.report(run)
            else:
                self.ready.appendleft(key)


class StopSignals:
    """Records the first Ctrl-C or SIGTERM for the running loop. Every later one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def code(self) -> int:
        """The exit code that shells expect after the signal; 0 where none came."""
        if self.signum is None:
            return 0
        return CODES[signal.Signals(self.signum)]

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in CODES}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            raise KeyboardInterrupt
        self.signum = signum


def cells_to_run(plan: SweepPlan, runs: Mapping[str, PlannedRun]) -> Sequence[Cell]:
    """Return the cells that may run: all, or in a sweep with `tune` or `until` the ones selected by the runs so far."""
    if not plan.question.get("tune") and not plan.question.get("until"):
        return plan.cells
    values = {key: run.now.metrics for key, run in runs.items() if run.now.state == "done"}
    # Not interrupted runs: they may still get a value, and a choice without it could differ later.
    failed = [key for key, run in runs.items() if run.ended and run.now.state == "failed"]
    return due.due_cells(plan, values, failed)


def in_run_order(plan: SweepPlan, cells: Sequence[Cell]) -> list[Cell]:
    """Return cells by seed and then by arm, the baseline first."""
    # So early comparisons have equal numbers of seeds.
    seeds = list(dict.fromkeys(cell.seed for cell in plan.cells))
    arms = sorted((arm.name for arm in plan.arms), key=lambda name: name != plan.question.get("baseline"))
    seed_ranks = {seed: rank for rank, seed in enumerate(seeds)}
    arm_ranks = {name: rank for rank, name in enumerate(arms)}
    variant_ranks = {key: rank for rank, key in enumerate(plan.variants)}

    def order(cell: Cell) -> tuple[int, int, int]:
        arm = plan.variants[cell.variant].arm
        return seed_ranks.get(cell.seed, len(seeds)), arm_ranks.get(arm, len(arm_ranks)), variant_ranks[cell.variant]

    return sorted(cells, key=order)
