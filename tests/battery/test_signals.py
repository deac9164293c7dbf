"""Signals in every phase of a run, to its main process, another rank or a loader's worker; resumed, the same bits."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blockyard.engine import evaluator, loader, setup, summary
from blockyard.engine.callbacks.loop import LoopActions, LoopCallback
from blockyard.engine.module import Learner
from blockyard.engine.run import train
from blockyard.runs import start
from blockyard.runs.checkpoint import newest_good
from blockyard.runs.checkpoint_io import AtomicCheckpointIO
from blockyard.runs.folder import RunFolder
from blockyard.runs.start import create_run
from tests.battery import ranks
from tests.battery.cases import battery, cases
from tests.battery.ranks import only_run
from tests.support.engine_runs import assert_same_bits, config
from tests.support.fork import forked

pytestmark = battery("signals")

STEPS = ("trainer.max_steps=12", "trainer.eval_every=4", "callbacks.checkpoint.every=3")
PAUSE = 0.3  # seconds that a stopped process stays stopped

# How a signal comes: all of them in this order, to the process that is in the phase.
SENT: dict[str, tuple[signal.Signals, ...]] = {
    "TERM": (signal.SIGTERM,),
    "INT": (signal.SIGINT,),
    "HUP": (signal.SIGHUP,),
    "USR1": (signal.SIGUSR1,),
    "USR2": (signal.SIGUSR2,),
    "XCPU": (signal.SIGXCPU,),
    "TERM-TERM": (signal.SIGTERM, signal.SIGTERM),
    "INT-INT": (signal.SIGINT, signal.SIGINT),
    "TERM-INT": (signal.SIGTERM, signal.SIGINT),
    "STOP-CONT": (signal.SIGSTOP,),  # another process sends the second one
}
PHASES = ("folder", "setup", "start", "step", "evaluation", "save", "last step", "last evaluation", "summary", "status")


@dataclass(frozen=True)
class Case:
    """Signals to a process in a phase of a run."""

    sent: str
    phase: str
    rank: int = 0
    kind: str = "cpu"

    def __str__(self) -> str:
        return f"{self.kind}-{self.sent}-{self.phase.replace(' ', '_')}-{self.rank}"


# Two of the ways in every phase, and three of the others in turn.
_OFTEN = ("TERM", "INT")
_OTHERS = [sent for sent in SENT if sent not in _OFTEN]
ALONE = [
    Case(sent, phase)
    for number, phase in enumerate(PHASES)
    for sent in (*_OFTEN, *(_OTHERS[(3 * number + offset) % len(_OTHERS)] for offset in range(3)))
]
TO_ONE = {"TERM": "step", "INT": "setup", "USR1": "evaluation", "HUP": "save", "STOP-CONT": "step"}
OF_TWO = [
    Case(sent, phase, rank, kind)
    for number, (sent, phase) in enumerate(TO_ONE.items())
    for rank in (0, 1)
    for kind in [("ddp", "fsdp")[(number + rank) % 2]]
]
TO_WORKERS = ("TERM", "INT", "HUP", "USR1", "STOP-CONT")
WORKER = [Case(sent, target) for sent in TO_WORKERS for target in ("group", "worker")]


def _send(sent: str, pid: int | None = None) -> None:
    """Send signals to a process, this one by default."""
    pid = os.getpid() if pid is None else pid
    for number in SENT[sent]:
        if number == signal.SIGSTOP:
            _continue_later(pid)
        os.kill(pid, number)


def _continue_later(pid: int) -> None:
    if os.fork() == 0:
        try:
            time.sleep(PAUSE)
            os.kill(pid, signal.SIGCONT)
        finally:
            os._exit(0)


def _once(act: Callable[[], None]) -> Callable[[], None]:
    done: set[int] = set()  # processes: a rank is a fork of another one

    def first() -> None:
        if os.getpid() not in done:
            done.add(os.getpid())
            act()

    return first


def _before(owner: Any, name: str, act: Callable[[], None], when: Callable[..., bool] = lambda *_, **__: True) -> None:
    """Let `act` happen before the first call of a function for which `when` holds."""
    original, act = getattr(owner, name), _once(act)

    def planted(*arguments: Any, **settings: Any) -> Any:
        if when(*arguments, **settings):
            act()
        return original(*arguments, **settings)

    setattr(owner, name, planted)


def _plant(case: Case) -> None:
    """Send the signals of a case when its process is in the phase."""
    calls = {"number": 0}

    def act() -> None:
        if ranks.rank() == case.rank:
            _send(case.sent)

    def at(step: int) -> Callable[..., bool]:
        return lambda loop, *_: loop.state.step == step

    def evaluation(number: int) -> Callable[..., bool]:
        def when(*_: Any, **__: Any) -> bool:
            calls["number"] += 1
            return calls["number"] == number

        return when

    plant: dict[str, Callable[[], None]] = {
        "folder": partial(_before, start, "write_yaml", act),
        "setup": partial(_before, setup, "resume_point", act),
        "start": partial(_before, LoopCallback, "on_train_start", act),
        "step": partial(_before, Learner, "training_step", act, lambda learner, *_: learner.step.number == 5),
        "evaluation": partial(_before, evaluator, "evaluate", act, evaluation(2)),
        "save": partial(_before, AtomicCheckpointIO, "save_checkpoint", act, evaluation(3))
        if case.kind == "cpu"
        else partial(_before, LoopActions, "save", act, at(6)),
        "last step": partial(_before, LoopCallback, "on_train_batch_end", act, at(11)),
        "last evaluation": partial(_before, evaluator, "evaluate", act, evaluation(3)),
        "summary": partial(_before, summary, "best_model", act),
        "status": partial(_before, RunFolder, "write_summary", act),
    }
    plant[case.phase]()


def _train(outputs: Path, kind: str, plant: Callable[[], None] | None = None, *overrides: str) -> int:
    """Train in a fork in which something was planted; return the exit code."""
    if kind != "cpu":
        run = ranks.two(outputs, kind, "trainer.timeout=60", *STEPS)
    else:
        plain, choices = config(outputs, *STEPS, *overrides)

        def run() -> int:
            with create_run(plain, command=["test"], choices=choices) as run_folder:
                return train(run_folder, resume=run_folder.resumes)

    def work() -> int:
        for number in {number for sent in SENT.values() for number in sent} - {signal.SIGINT, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # whatever the tests were started under
        if plant is not None:
            plant()
        return run()

    return forked(work, 400)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunFolder]:
    """Runs that no signal reached, by kind."""
    run_folders: dict[str, RunFolder] = {}

    def run(kind: str) -> RunFolder:
        if kind not in run_folders:
            outputs = tmp_path_factory.mktemp(kind)
            assert _train(outputs, kind) == 0
            run_folders[kind] = only_run(outputs)
        return run_folders[kind]

    return run


def _assert_ended_by(case: Case, code: int, run_folder: RunFolder) -> None:
    """The exit code is that of the first signal, and the state says so."""
    status = run_folder.status
    first = SENT[case.sent][0]
    if case.sent == "STOP-CONT":
        assert (code, status.state) == (0, "done"), status
        return
    assert code == 128 + first, status
    assert status.state == "interrupted", status
    assert f"stopped by {first.name}" in str(status.reason)
    assert status.exit_code == code
    assert not list(run_folder.path.rglob(".tmp-*"))


@pytest.mark.sampled(100)
@pytest.mark.parametrize("case", cases(ALONE, short=3))
def test_a_signal_interrupts_a_run_that_then_ends_with_the_same_bits(
    tmp_path: Path, whole: Callable[[str], RunFolder], case: Case
) -> None:
    code = _train(tmp_path, case.kind, partial(_plant, case))
    if case.phase == "folder" and case.sent != "STOP-CONT":  # nothing handles signals yet: it ends by them
        assert code in (-SENT[case.sent][0], 1, 130), code
    else:
        _assert_ended_by(case, code, only_run(tmp_path))
    if code:
        assert _train(tmp_path, case.kind) == 0
    assert_same_bits(only_run(tmp_path), whole("cpu"))


@pytest.mark.full
@pytest.mark.parametrize("case", cases(OF_TWO, short=1))
def test_a_signal_to_one_of_two_processes_interrupts_both(
    tmp_path: Path, whole: Callable[[str], RunFolder], case: Case
) -> None:
    code = _train(tmp_path, case.kind, partial(_plant, case))
    run_folder = only_run(tmp_path)
    _assert_ended_by(case, code, run_folder)
    assert not ranks.left(tmp_path)
    if code:
        assert _train(tmp_path, case.kind) == 0
    assert_same_bits(run_folder, whole(case.kind))


@pytest.mark.parametrize("case", cases(WORKER, short=1))
def test_workers_leave_signals_to_the_main_process(
    tmp_path: Path, whole: Callable[[str], RunFolder], case: Case
) -> None:
    def plant() -> None:
        def act() -> None:
            workers = [process.pid for process in _workers()]
            for pid in workers:
                _send(case.sent, pid)
            if case.phase == "group":
                _send(case.sent)

        _before(Learner, "training_step", act, lambda learner, *_: learner.step.number == 5)

    code = _train(tmp_path, "cpu", plant, "trainer.num_workers=2")
    run_folder = only_run(tmp_path)
    if case.phase == "group":
        _assert_ended_by(case, code, run_folder)
    elif code:  # a worker that is told to end while it is needed
        assert "TERM" in case.sent
        assert (code, run_folder.status.state) == (1, "failed"), run_folder.status
        with run_folder.lock():
            run_folder.set_status("interrupted", "for this test")
    if code:
        assert _train(tmp_path, "cpu", None, "trainer.num_workers=2") == 0
    assert_same_bits(only_run(tmp_path), whole("cpu"))


def _workers() -> list[Any]:
    import multiprocessing

    children = multiprocessing.active_children()
    assert len(children) == 2
    return children


@pytest.mark.full
def test_a_stopped_worker_is_not_waited_for_without_end(tmp_path: Path) -> None:
    def plant() -> None:
        def act() -> None:
            for worker in _workers():
                (tmp_path / f"pid-{worker.pid}").touch()
                os.kill(worker.pid, signal.SIGSTOP)

        _before(Learner, "training_step", act, lambda learner, *_: learner.step.number == 5)

    assert _train(tmp_path, "cpu", plant, "trainer.num_workers=2", "trainer.timeout=2") == 1
    run_folder = only_run(tmp_path)
    assert run_folder.status.state == "failed"
    assert "timed out after 2" in str(run_folder.status.reason)
    assert not ranks.left(tmp_path)


@pytest.mark.parametrize("overrides", [(), ("trainer.accumulate=2",)], ids=["whole", "micro"])
def test_a_signal_ends_a_run_whose_workers_are_stopped(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """The step in progress is finished with batches that this process reads, and saved."""

    def plant() -> None:
        loader.GRACE = 0.2

        def act() -> None:
            for worker in _workers():
                os.kill(worker.pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGTERM)

        _before(Learner, "training_step", act, lambda learner, *_: learner.step.number == 5)

    stopped = tmp_path / "stopped"
    assert _train(stopped, "cpu", plant, "trainer.num_workers=2", *overrides) == 143
    run_folder = only_run(stopped)
    assert run_folder.status.state == "interrupted"
    assert newest_good(run_folder.checkpoints).step == run_folder.status.step == 6
    assert not ranks.left(stopped)
    assert _train(stopped, "cpu", None, *overrides) == 0
    assert _train(tmp_path / "whole", "cpu", None, *overrides) == 0
    assert_same_bits(run_folder, only_run(tmp_path / "whole"))
