"""Planners, fork servers and workers that are killed, stopped or interrupted in every phase of a sweep.

Afterwards the same command ends the sweep with the figures of an undisturbed one, every cell counted once.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from blockyard.runs.metrics import read_metrics
from blockyard.sweep.cell.states import read_state
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.battery.cases import battery, cases
from tests.battery.stand_in_slurm import StandInSlurm
from tests.battery.strikes import Strike
from tests.battery.sweep_scene import Ended, litter, result, sweep, sweeps

pytestmark = battery("sweeps")

BASE = """
claim: RMSNorm is better than LayerNorm
base: [experiment=vit_digits, debug=fast, model.depth=1, model.dim=16, model.heads=2, logger=none, callbacks=quiet,
  trainer=cpu, data.batch_size=32, trainer.max_steps=4, trainer.eval_every=2, token_mixer.dropout=0.1]
arms: {plain: [], rms: [norm=rms]}
metric: test/loss
seeds: 1
"""
ONE_ARM = BASE.replace(", rms: [norm=rms]", "")
SEARCH = """
search: {trials: TRIALS, sampler: SAMPLER, pruner: PRUNER, space: {optimizer.lr: {low: 1e-4, high: 1e-1, log: true}}}
"""
FILES = {
    "cells": BASE,
    "random": BASE + SEARCH.replace("TRIALS", "2").replace("SAMPLER", "random").replace("PRUNER", "none"),
    "pruned": ONE_ARM + SEARCH.replace("TRIALS", "3").replace("SAMPLER", "tpe").replace("PRUNER", "halving"),
}
OUTPUTS = "outputs"
KILL, TERM, INT, STOP = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP
_ENDS = {KILL: {-9}, TERM: {143, -15}, INT: {130}, STOP: {0}}


@dataclass(frozen=True)
class Case:
    """A sweep file, further arguments, and the signal that disturbs it."""

    file: str
    arguments: tuple[str, ...]
    strike: Strike

    def __str__(self) -> str:
        return f"{self.file}-{self.arguments[1]}-{self.strike}"


# One thread each, whatever the number of workers: the figures of two threads may differ in the last bits.
SERIAL, PARALLEL = (("--workers", workers, "executor.threads=1") for workers in "12")
PLANNER = [
    ("blockyard.sweep.plan.planner:make_plan", 1),
    ("blockyard.sweep.plan.cell_composer:CellComposer.compose", 2),
    ("blockyard.sweep.plan.history:store_plan", 1),
    ("os:replace=plan.json", 1),
    ("blockyard.report.home.stale:mark", 1),
    ("blockyard.sweep.executor._server_process:ServerProcess.start", 1),
    ("blockyard.sweep.executor.local:LocalExecutor.submit", 1),
    ("blockyard.sweep.executor.local:LocalExecutor.submit", 2),
    ("blockyard.sweep.executor.local:LocalExecutor._end", 1),
    ("blockyard.sweep.execution.runner:_Loop._finish", 1),
    ("blockyard.sweep.execution.runner:_Loop._finish", 2),
    ("blockyard.report.comparison:compare", 1),
    ("os:replace=comparison.json", 1),
    ("os:replace=report.html", 1),
    ("blockyard.report.render.terminal:show", 1),
]
WORKER = [
    ("blockyard.sweep.executor._fork_server:execute", 1),
    ("blockyard.sweep.cell.execute:create_run", 1),
    ("blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start", 3),
    ("os:replace=last.ckpt", 1),
    ("blockyard.engine.summary:summarize", 1),
    ("blockyard.runs.folder:RunFolder.write_summary", 1),
]
SERVER = [
    ("blockyard.sweep.executor._fork_server:ForkServer._handle", 1),
    ("blockyard.sweep.executor._fork_server:ForkServer._handle", 2),
    ("blockyard.sweep.executor._fork_server:_Cell.read", 1),
]
SEARCHED = [
    ("blockyard.sweep.search.trials:Trials.create", 2, "planner"),
    ("blockyard.sweep.search.search_runner:TrialLoop._start", 2, "planner"),
    ("blockyard.sweep.search.search_runner:TrialLoop._finish", 2, "planner"),
    ("blockyard.sweep.search.trials:Trials.complete", 1, "planner"),
    ("blockyard.sweep.search.search_runner:plan_with_chosen", 1, "planner"),
    ("blockyard.sweep.cell.execute:TrialReporter.on_evaluate", 1, "self"),
    ("blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start", 3, "self"),
    ("blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start", 2, "planner"),
    ("blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start", 2, "server"),
]


def _local() -> Iterator[Case]:
    """Each point before and after, with kills and the other signals in turn."""
    number = 0
    for point, call in PLANNER:
        for when in ("before", "after"):
            signum = (KILL, TERM, KILL, INT, KILL, STOP, TERM)[number % 7]
            arguments = SERIAL if number % 3 else PARALLEL
            yield Case("cells", arguments, Strike(point, signum, when, call, "planner"))
            number += 1
    for point, call in WORKER:
        for target, signums in (("self", [KILL, TERM, STOP]), ("planner", [KILL, TERM, INT]), ("server", [KILL, STOP])):
            number += 1
            when = ("before", "after")[number % 2]
            yield Case("cells", PARALLEL, Strike(point, signums[number % len(signums)], when, call, target))
    for point, call in SERVER:
        for signum in (KILL, TERM, STOP):
            number += 1
            yield Case("cells", SERIAL, Strike(point, signum, ("before", "after")[number % 2], call, "self"))


def _searched() -> Iterator[Case]:
    signals = [KILL, TERM, STOP, INT]
    for number, (point, call, target) in enumerate(SEARCHED):
        for offset, file in enumerate(("random", "pruned") if number % 2 or target == "self" else ("random",)):
            signum = signals[(number + 2 * offset) % (4 if target == "planner" else 3)]
            arguments = SERIAL if file == "pruned" else PARALLEL  # TPE and pruning depend on the order of trials
            yield Case(file, arguments, Strike(point, signum, ("before", "after")[number % 2], call, target))


_UNDISTURBED: dict[str, dict[str, Any]] = {}


@pytest.fixture
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each file finds if nothing happens."""

    def values_of(file: str) -> dict[str, Any]:
        if file not in _UNDISTURBED:
            here = scene(tmp_path_factory.mktemp("undisturbed"), file)
            ended = sweep(here, f"{file}.yaml", *SERIAL)
            assert (ended.code, ended.orphans) == (0, 0), ended.output
            _UNDISTURBED[file] = result(here / OUTPUTS, file)
        return _UNDISTURBED[file]

    return values_of


def scene(folder: Path, file: str) -> Path:
    (folder / f"{file}.yaml").write_text(FILES[file])
    return folder


def check_code(strike: Strike, ended: Ended, outputs: Path) -> None:
    """The exit code tells the truth: that of the signal, or 0 only where every cell is done."""
    assert ended.orphans == 0, ended.output
    assert "Traceback" not in ended.output, ended.output
    if strike.target == "planner":
        assert ended.code in _ENDS[signal.Signals(strike.signum)], ended.output
    elif strike.signum == STOP:
        assert ended.code == 0, ended.output
    else:
        plan = SweepPlan.load(next((outputs / "sweeps").iterdir()))
        states = [read_state(plan.path(cell)).state for cell in plan.cells]
        assert ended.code == (0 if states and set(states) == {"done"} else 1), ended.output


def check_end(here: Path, file: str, undisturbed: Any, again: Ended) -> None:
    """The sweep has ended as an undisturbed one, and nothing is left over."""
    outputs = here / OUTPUTS
    assert (again.code, again.orphans) == (0, 0), again.output
    assert result(outputs, file) == undisturbed(file)
    assert litter(outputs) == []
    for path in outputs.glob("*/s[0-9]*"):
        steps = [row["step"] for row in read_metrics(path / "metrics.csv")]
        assert steps == sorted(set(steps))  # no step was counted twice
    files = {path.name for path in (outputs / "sweeps" / file).iterdir()} - {"submitit"}
    assert files <= {"plan.json", "comparison.json", "report.html", "time.json", ".search.lock", "search.db"}


LOCAL = [*_local(), *_searched()]


@pytest.mark.full
@pytest.mark.parametrize("case", cases(LOCAL, short=1))
def test_a_disturbed_sweep_goes_on_to_the_same_figures(case: Case, tmp_path: Path, undisturbed: Any) -> None:
    here = scene(tmp_path, case.file)
    arguments = (f"{case.file}.yaml", *case.arguments)
    ended = sweep(here, *arguments, strike=case.strike)
    assert (here / "struck").exists(), ended.output
    check_code(case.strike, ended, here / OUTPUTS)
    check_end(here, case.file, undisturbed, sweep(here, *arguments))


# -- a retry, two planners, other executors ---------------------------------------------------------------

RETRIED = [
    Strike("blockyard.sweep.executor.local:LocalExecutor.submit", KILL, "after", 1, "planner"),
    Strike("blockyard.sweep.cell.execute:create_run", KILL, "after", 1),
    Strike("blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start", KILL, "before", 2),
    Strike("blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start", TERM, "before", 2, "planner"),
    Strike("blockyard.sweep.execution.runner:_Loop._finish", INT, "before", 1, "planner"),
    Strike("blockyard.sweep.executor._fork_server:ForkServer._handle", KILL, "after", 1),
]


@pytest.mark.parametrize("strike", cases(RETRIED, short=0))
def test_a_disturbed_retry_goes_on_to_the_same_figures(strike: Strike, tmp_path: Path, undisturbed: Any) -> None:
    """A cell has failed; its retry is disturbed, and retried again."""
    here = scene(tmp_path, "cells")
    ended = sweep(here, "cells.yaml", *SERIAL, patch=lambda: fail_once(here / "failed"))
    assert ended.code == 1, ended.output
    assert (here / "failed").exists()
    ended = sweep(here, "cells.yaml", "--retry", *SERIAL, strike=strike)
    assert (here / "struck").exists(), ended.output
    check_code(strike, ended, here / OUTPUTS)
    check_end(here, "cells", undisturbed, sweep(here, "cells.yaml", "--retry", *SERIAL))


def fail_once(marker: Path) -> None:
    """The first cell that reaches its third step raises there."""
    from blockyard.engine.callbacks.loop import LoopCallback

    original = LoopCallback.on_train_batch_start

    def failing(self: LoopCallback, *arguments: Any) -> None:
        original(self, *arguments)
        if self.state.step == 2 and not marker.exists():
            marker.touch()
            raise RuntimeError("planted")

    LoopCallback.on_train_batch_start = failing  # type: ignore[method-assign]


TWO = [
    ("cells", None),
    ("random", None),
    ("cells", Strike("blockyard.sweep.execution.runner:_Loop._finish", KILL, "before", 1, "planner")),
    (
        "cells",
        Strike("blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start", TERM, "before", 3, "planner"),
    ),
    ("random", Strike("blockyard.sweep.search.trials:Trials.create", KILL, "after", 2, "planner")),
    (
        "random",
        Strike("blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start", KILL, "before", 3, "server"),
    ),
    ("cells", Strike("os:replace=plan.json", KILL, "before", 1, "planner")),
    ("cells", Strike("os:replace=comparison.json", KILL, "before", 1, "planner")),
]


@pytest.mark.parametrize("case", cases(TWO, short=0, names=lambda case: f"{case[0]}-{case[1]}"))
def test_two_planners_on_one_folder(case: tuple[str, Strike | None], tmp_path: Path, undisturbed: Any) -> None:
    """The one that is not disturbed ends the sweep with the figures of one planner."""
    file, strike = case
    here = scene(tmp_path, file)
    arguments = (f"{file}.yaml", *SERIAL)
    ((first, second), (again,)) = sweeps(here, [[arguments, arguments], [arguments]], strike=strike)
    assert (first.orphans, second.orphans) == (0, 0)
    if strike is None:
        assert first.code == 0, first.output
    elif strike.target == "planner" and (here / "struck").exists():
        assert first.code in _ENDS[signal.Signals(strike.signum)], first.output
    assert second.code == 0, second.output
    assert "Traceback" not in first.output + second.output
    check_end(here, file, undisturbed, again)


DEBUG = ("executor=slurm", "executor.cluster=debug")
STEP = "blockyard.engine.callbacks.loop:LoopCallback.on_train_batch_start"
IN_PROCESS = [
    Strike(point, signum, when, call, "planner")
    for point, call, when in (
        (STEP, 3, "before"),
        ("blockyard.engine.summary:summarize", 1, "before"),
        ("blockyard.sweep.execution.runner:_Loop._finish", 1, "after"),
    )
    for signum in (KILL, TERM, INT, STOP)
]


@pytest.mark.parametrize("strike", cases(IN_PROCESS, short=0))
def test_cells_in_the_planners_process(strike: Strike, tmp_path: Path, undisturbed: Any) -> None:
    here = scene(tmp_path, "cells")
    ended = sweep(here, "cells.yaml", *DEBUG, strike=strike)
    assert (here / "struck").exists(), ended.output
    check_code(strike, ended, here / OUTPUTS)
    check_end(here, "cells", undisturbed, sweep(here, "cells.yaml", *DEBUG))


JOBS = [
    Strike("blockyard.sweep.executor.slurm:SlurmExecutor.submit", KILL, "after", 1, "planner"),
    Strike("os:replace=jobs.json", KILL, "before", 1, "planner"),
    Strike("os:replace=jobs.json", TERM, "after", 1, "planner"),
    Strike("blockyard.sweep.executor._slurm_queue:JobFollower.outcome", KILL, "before", 1, "planner"),
    Strike("blockyard.sweep.executor._slurm_queue:JobFollower.outcome", INT, "after", 1, "planner"),
    Strike("blockyard.sweep.executor.slurm:SlurmExecutor._leave_queue", KILL, "before", 1, "planner"),
    Strike("blockyard.sweep.executor.slurm:SlurmExecutor._leave_queue", STOP, "before", 1, "planner"),
]


@pytest.mark.parametrize("strike", cases(JOBS, short=0))
def test_slurm_jobs_of_a_disturbed_planner(strike: Strike, tmp_path: Path, undisturbed: Any) -> None:
    """Jobs outlive a killed planner; the next one finds them, or their runs."""
    here = scene(tmp_path, "cells")
    slurm = StandInSlurm(here)
    arguments = ("cells.yaml", "executor=slurm", "executor.cpus_per_task=1")
    ((ended,), (again,)) = sweeps(
        here, [[arguments], [arguments]], strike=strike, patch=slurm.install, daemon=slurm.serve
    )
    assert (here / "struck").exists(), ended.output
    check_code(strike, ended, here / OUTPUTS)
    assert list((slurm.folder / "queue").iterdir()) == []
    check_end(here, "cells", undisturbed, again)
