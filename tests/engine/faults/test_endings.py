"""How a run ended is decided in one place, said in words that can be printed, and shared among processes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.faults.ending import ending_of
from blockyard.engine.faults.interrupts import Interrupted, Interrupts, Paused
from blockyard.engine.faults.peers import (
    ChildWatch,
    ConnectionLostError,
    PeerFailedError,
    PeerLostError,
    Peers,
    symptom,
)
from blockyard.engine.module import Learner
from blockyard.engine.run import train
from blockyard.errors import UserError, printable
from blockyard.runs.rank_notes import Note, clear_notes, read_notes, write_note
from blockyard.runs.status import Status, read_status, reason_of, write_status
from tests.support.engine_runs import folder, run
from tests.support.fork import forked

CLOSED = RuntimeError("[/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4242")
SILENT = RuntimeError("[/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 300000ms for recv operation")


def peers(path: Path, world: int = 2, endings: dict[int, int] | None = None) -> Peers:
    return Peers(path, 0, world, 5.0, endings or {})


class Unprintable(Exception):
    def __str__(self) -> str:
        raise SystemExit(0)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("planted\nsecond line"), "ValueError: planted"),
        (ValueError(), "ValueError: no message"),
        (ValueError("\x1b[31mred\x07"), r"ValueError: \x1b[31mred\x07"),
        (ValueError("\udcff.png"), r"ValueError: \udcff.png"),
        (ValueError("\u202egnp"), r"ValueError: \u202egnp"),
        (ValueError("für 1\u00a0000 €"), "ValueError: für 1\u00a0000 €"),
        (Unprintable(), "Unprintable: its text cannot be printed (SystemExit)"),
        (SystemExit(0), "SystemExit: 0"),
        (
            ValueError(
                "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (...):\nValueError: why\n"
            ),
            "ValueError: why",
        ),
    ],
)
def test_the_reason_of_an_error_is_one_line_that_can_be_printed(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
    reason_of(error).encode()
    assert printable(reason) == reason


def test_only_signals_and_callbacks_interrupt() -> None:
    assert ending_of(Interrupted(signal.SIGUSR1), 3).code == 128 + signal.SIGUSR1
    assert ending_of(Paused("pruned"), 3).state == "interrupted"
    for error in (SystemExit(0), KeyboardInterrupt(), GeneratorExit(), Unprintable()):
        ending = ending_of(error, 3)
        assert (ending.state, ending.code) == ("failed", 1)
        assert type(error).__name__ in str(ending.reason)
        assert ending.trace


def test_lightnings_exit_is_named_by_the_keyboard_interrupt_that_it_replaced() -> None:
    error = SystemExit(1)
    error.__context__ = KeyboardInterrupt()
    assert ending_of(error, 0).reason == "KeyboardInterrupt: no message (after step 0)"


def test_training_that_ends_without_a_reason_is_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: what stopped a rank that no signal had reached."""
    original = LoopCallback.on_train_batch_end

    def stopped(self: LoopCallback, trainer: Any, *arguments: Any) -> None:
        original(self, trainer, *arguments)
        trainer.should_stop = self.state.step == 10

    monkeypatch.setattr(LoopCallback, "on_train_batch_end", stopped)
    monkeypatch.setattr(LoopCallback, "quiet_steps", lambda _: 0)
    monkeypatch.setattr(LoopCallback, "_note_lightning_stop", lambda *_: None)
    run_folder = run(tmp_path, code=1)
    assert "training ended after step 10 of 30, and nothing says why" in str(run_folder.status.reason)
    assert not run_folder.summary()


def test_a_skipped_rest_of_the_epoch_is_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def skipping(self: Learner, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.step.number == 7 else None

    monkeypatch.setattr(Learner, "on_train_batch_start", skipping)
    monkeypatch.setattr(LoopCallback, "quiet_steps", lambda _: 0)
    assert "skipped the rest of an epoch" in str(run(tmp_path, code=1).status.reason)


def test_a_weight_that_is_not_finite_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.optimizer_step

    def spoil(self: Learner, *arguments: Any, **settings: Any) -> None:
        original(self, *arguments, **settings)
        if self.step.number == 8:
            next(self.model.parameters()).data[0] = torch.nan

    monkeypatch.setattr(Learner, "optimizer_step", spoil)
    run_folder = run(tmp_path, code=1)
    assert "is not finite at step 8; nothing was saved" in str(run_folder.status.reason)
    assert not list(run_folder.checkpoints.glob("*.ckpt"))


def test_few_open_files_are_refused_before_workers_start(tmp_path: Path) -> None:
    def work() -> int:
        run_folder = folder(tmp_path, "trainer.num_workers=2")
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        try:
            train(run_folder)
        except UserError as error:
            return 2 if "num_workers=2 needs about" in str(error) else 3
        return 4

    assert forked(work) == 2


def test_a_second_signal_does_not_disturb_the_end() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.signum == signal.SIGTERM


def test_a_handler_of_the_programs_own_stays() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: seen.append(number))
    try:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert seen == [signal.SIGUSR2]


def test_an_error_of_ones_own_is_not_taken_for_that_of_another(tmp_path: Path) -> None:
    write_note(tmp_path, Note(1, "RuntimeError: Connection closed by peer", waited="lost"))
    error = RuntimeError("planted")
    assert symptom(error) is None
    assert peers(tmp_path, endings={1: 1}).explain(error) is error


@pytest.mark.parametrize(
    "error", [CLOSED, SILENT, torch.distributed.DistStoreError("1/2 clients joined"), ConnectionLostError()]
)
def test_the_note_of_a_process_that_failed_is_the_reason(tmp_path: Path, error: RuntimeError) -> None:
    write_note(tmp_path, Note(1, "ValueError: planted"))
    result = peers(tmp_path).explain(error)
    assert isinstance(result, PeerFailedError)
    assert str(result) == "process 1: ValueError: planted"


def test_a_signal_to_another_process_interrupts(tmp_path: Path) -> None:
    write_note(tmp_path, Note(1, "stopped by SIGUSR1", signum=signal.SIGUSR1))
    result = peers(tmp_path).explain(CLOSED)
    assert isinstance(result, Interrupted)
    assert result.exit_code == 138
    killed = peers(tmp_path / "none", endings={1: -signal.SIGTERM}).explain(CLOSED)
    assert str(killed) == "stopped by SIGTERM in process 1"


@pytest.mark.full
def test_processes_that_wait_name_the_one_that_does_not(tmp_path: Path) -> None:
    for rank in (1, 3):
        write_note(tmp_path, Note(rank, "RuntimeError: Timed out", waited="timeout"))
    result = peers(tmp_path, world=4).explain(CLOSED)  # closed by those that waited
    assert isinstance(result, PeerLostError)
    assert str(result).startswith("process 2 did not answer within 5 s (trainer.timeout)")
    assert "signal 9 (SIGKILL)" in str(peers(tmp_path, world=4, endings={2: -9}).explain(CLOSED))


def test_a_damaged_note_is_none(tmp_path: Path) -> None:
    write_note(tmp_path, Note(1, "planted"))
    (tmp_path / "error-process-0.json").write_text("[]")
    assert [note.rank for note in read_notes(tmp_path)] == [1]
    clear_notes(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_status_of_a_killed_run_has_what_another_process_noted(tmp_path: Path) -> None:
    write_status(tmp_path, Status("running"))
    write_note(tmp_path, Note(1, "process 0 did not answer within 5 s", waited="timeout"))
    reason = str(read_status(tmp_path, alive=False).reason)
    assert reason.endswith("ended without reporting; process 1: process 0 did not answer within 5 s")


@pytest.mark.parametrize("code", [3, -9])
def test_a_process_that_failed_unnoticed_is_reported(tmp_path: Path, code: int) -> None:
    lines: list[dict[int, int]] = []
    done = threading.Event()
    work = f"import os; os._exit({code})" if code > 0 else "import os; os.kill(os.getpid(), 9)"
    children = [subprocess.Popen([sys.executable, "-c", each]) for each in (work, "import time; time.sleep(600)")]
    watch = ChildWatch(children, tmp_path, lambda endings: (lines.append(endings), done.set()), grace=0.0)
    watch.start()
    assert done.wait(60)
    assert lines == [{1: code}]
    assert children[1].wait(10) == -signal.SIGKILL


def test_a_run_whose_folder_has_any_byte_in_its_name_says_so_in_escapes(tmp_path: Path) -> None:
    assert printable(os.fsdecode(b"/runs/\xff\x1b[2J")) == r"/runs/\udcff\x1b[2J"
