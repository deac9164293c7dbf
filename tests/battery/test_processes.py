"""Two processes, of which one is killed, stopped, slow, raises or computes NaN: a bounded end that names it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from blockyard.engine import setup
from blockyard.engine.callbacks.loop import LoopActions
from blockyard.engine.module import Learner
from blockyard.ops import ring
from blockyard.runs.checkpoint import newest_good
from tests.battery import ranks
from tests.battery.cases import battery, cases
from tests.battery.ranks import only_run, rank, two
from tests.support.engine_runs import state
from tests.support.every import every
from tests.support.fork import forked

pytestmark = battery("processes")

TIMEOUT = 12.0  # trainer.timeout of these runs
LONGEST = 150.0  # seconds for a whole run on a busy machine; without a bound it would take the half hour of gloo
STEP = 5  # after the save of step 4


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _sleep() -> None:
    time.sleep(600)


def _raise() -> None:
    raise ValueError("planted")


def _exit() -> None:
    sys.exit(0)


def _end() -> None:
    os._exit(0)


ACTS: dict[str, Callable[[], None]] = {
    act.__name__.strip("_"): act for act in (_kill, _stop, _sleep, _raise, _exit, _end)
}


@dataclass(frozen=True)
class Case:
    """What happens where, in which process. phase: setup, step, evaluation, save, or ring: among exchanges of keys"""

    kind: str
    act: str
    rank: int
    phase: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.act}-{self.rank}-{self.phase}"


def _possible(case: Case) -> bool:
    """Whether a case is one: nobody waits for a main process that has started no other, nor sees `os._exit` of it."""
    return case.rank == 1 or not (case.act == "end" or (case.phase == "setup" and case.act in ("stop", "sleep")))


CASES = [
    case
    for index, act in enumerate([*ACTS, "nan"])
    for kind in ("ddp", "fsdp")
    for number in (1, 0)
    for phase in ((("setup", "evaluation")[(index + (kind == "ddp")) % 2], "step") if act != "nan" else ("step",))
    if _possible(case := Case(kind, act, number, phase))
]
CASES += [
    case
    for act in ("kill", "stop", "raise", "exit")
    for number in (1, 0)
    for phase in ("step", "ring")
    if _possible(case := Case("context", act, number, phase))
]


def _plant(case: Case) -> None:
    if case.phase == "ring":
        ranks.on_step(STEP, case.rank, lambda: _in_the_ring(ACTS[case.act]))
    elif case.phase == "step":
        ranks.on_step(STEP, case.rank, ACTS.get(case.act, _spoil))
    elif case.phase == "setup":
        original = setup.resume_point

        def planted(*arguments: object) -> object:
            if rank() == case.rank:
                ACTS[case.act]()
            return original(*arguments)  # type: ignore[arg-type]

        setup.resume_point = planted  # type: ignore[assignment]
    else:
        evaluate = LoopActions.evaluate

        def evaluated(self: LoopActions, *arguments: object) -> None:
            if self.state.step == 8 and rank() == case.rank:
                ACTS[case.act]()
            evaluate(self, *arguments)  # type: ignore[arg-type]

        LoopActions.evaluate = evaluated  # type: ignore[method-assign]


def _in_the_ring(act: Callable[[], None]) -> None:
    """Plant `act` before the keys and values of a backward pass go around."""
    original = ring._Ring.backward

    def planted(*arguments: object) -> object:
        act()
        return original(*arguments)  # type: ignore[arg-type]

    ring._Ring.backward = staticmethod(planted)  # type: ignore[method-assign]


def _spoil() -> None:
    """Make the loss of this process NaN from here on."""
    original = Learner.training_step
    Learner.training_step = lambda self, *batch: original(self, *batch) * float("nan")  # type: ignore[method-assign]


@pytest.fixture(scope="module", autouse=True)
def _server() -> None:
    """What forks has imported everything before a case is timed."""
    assert forked(lambda: 0) == 0


@pytest.mark.sampled(100)
@pytest.mark.parametrize("case", cases(CASES, short=2))
def test_the_run_ends_soon_with_the_reason_and_the_rank(tmp_path: Path, case: Case) -> None:
    run = two(tmp_path, case.kind, base=ranks.CUT if case.kind == "context" else ranks.TWO)

    def work() -> int:
        _plant(case)
        return run()

    began = time.monotonic()
    code = forked(work, LONGEST)
    seconds = time.monotonic() - began
    run_folder = only_run(tmp_path)
    status = run_folder.status
    assert code != 0, status
    assert seconds < LONGEST
    gone = case.rank == 0 and case.act in ("kill", "stop")  # it could report nothing
    assert status.state == ("interrupted" if gone else "failed"), status
    assert code == (-signal.SIGKILL if gone else 1), status
    assert _named(case, str(status.reason)), status
    assert not (run_folder.path / "summary.json").exists()
    newest = newest_good(run_folder.checkpoints)
    assert not newest.refused
    assert newest.step == (None if case.phase == "setup" else 4)
    if newest.path:
        assert every(
            torch.isfinite(value).all() for value in state(run_folder).values() if value.dtype.is_floating_point
        )
    assert not ranks.left(tmp_path)


def _named(case: Case, reason: str) -> bool:
    """Whether a reason says what happened, and in which process."""
    other = f"process {case.rank}"
    if case.act in ("raise", "exit", "nan"):
        what = {"raise": "ValueError: planted", "exit": "SystemExit: 0", "nan": "NotFinite"}[case.act]
        return what in reason and (case.rank == 0 or case.act == "nan" or other in reason)
    if case.rank == 0 and case.act == "kill":
        return "ended without reporting" in reason
    if case.act in ("stop", "sleep"):
        return f"{other} did not answer within {TIMEOUT:g} s" in reason
    if case.act == "kill":
        return f"{other} was killed by signal 9" in reason
    return f"{other}" in reason
