"""A run that goes wrong says so: the state, the reason, the exit code, and nothing saved is lost."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.engine import setup as prepare_module
from blockyard.engine.callbacks import loop
from blockyard.engine.callbacks.loop import LoopActions
from blockyard.engine.faults.nan_guard import NanGuard, NotFiniteError
from blockyard.engine.module import Learner
from blockyard.engine.run import train
from blockyard.errors import UserError
from blockyard.runs.checkpoint import newest_good
from blockyard.runs.folder import RunFolder
from blockyard.runs.start import create_run
from tests.support.engine_runs import config, folder, run, state
from tests.support.every import every
from tests.support.fork import forked

MORE = ("callbacks.checkpoint.every=3",)


@pytest.mark.parametrize(("planted", "what"), [(float("inf"), "loss"), (float("nan"), "loss")])
def test_a_loss_that_is_no_number_ends_the_run_before_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: float, what: str
) -> None:
    original = Learner.training_step

    def poisoned(self: Learner, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.step.number == 10:
            batch.inputs = batch.inputs.float()
            batch.inputs[0, 0, 0, 0] = planted
        return original(self, batch, batch_idx)

    monkeypatch.setattr(Learner, "training_step", poisoned)
    run_folder = run(tmp_path, *MORE, code=1)
    status = run_folder.status
    assert status.state == "failed"
    assert status.step == 10
    assert what in str(status.reason)
    assert "at step 11" in str(status.reason)
    assert "NotFinite" in str(status.reason)
    assert newest_good(run_folder.checkpoints).step == 9
    assert every(torch.isfinite(value).all() for value in state(run_folder).values())
    assert not (run_folder.path / "summary.json").exists()


def test_infinite_gradients_of_a_finite_loss_are_caught_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = Learner.backward

    def poison(self: Learner, *arguments: Any) -> None:
        backward(self, *arguments)
        if self.step.number == 5:
            next(self.model.parameters()).grad[0] = float("inf")

    monkeypatch.setattr(Learner, "backward", poison)
    run_folder = run(tmp_path, code=1)
    assert "the gradient norm is inf at step 6" in str(run_folder.status.reason)


def test_without_the_guard_the_planted_number_spoils_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: what the guards are for."""
    monkeypatch.setattr(NanGuard, "check", lambda *_: None)
    monkeypatch.setattr(loop, "check_weights", lambda *_: None)

    backward = Learner.backward

    def poison(self: Learner, *arguments: Any) -> None:
        backward(self, *arguments)
        if self.step.number == 5:
            next(self.model.parameters()).grad[0] = float("nan")

    monkeypatch.setattr(Learner, "backward", poison)
    run_folder = run(tmp_path, code=1)  # and no weights are left that could be tested
    assert "no usable checkpoint" in str(run_folder.status.reason)
    assert not all(torch.isfinite(value).all() for value in state(run_folder).values())


def test_on_a_device_the_guard_speaks_when_asked() -> None:
    guard, one = NanGuard(), torch.ones((), device="meta")
    assert guard._first is None
    guard.check(3, one, one)  # cannot be known yet, and must not raise
    guard._first = torch.tensor(4)
    with pytest.raises(NotFiniteError, match="at step 4"):
        guard.raise_if_bad()


def test_an_error_in_a_step_is_failed_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Learner, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.step.number == 7:
            raise ZeroDivisionError("planted")
        return Learner._original(self, batch, batch_idx)  # type: ignore[attr-defined]

    monkeypatch.setattr(Learner, "_original", Learner.training_step, raising=False)
    monkeypatch.setattr(Learner, "training_step", broken)
    run_folder = run(tmp_path, *MORE, code=1)
    assert run_folder.status.state == "failed"
    assert run_folder.status.reason == "ZeroDivisionError: planted (after step 7)"
    assert "planted" in (run_folder.path / "error.txt").read_text()
    assert newest_good(run_folder.checkpoints).step == 6


def test_a_full_disk_is_failed_and_older_checkpoints_stay(tmp_path: Path) -> None:
    def work() -> int:
        original = LoopActions.save

        def tight(self: LoopActions, *arguments: Any) -> None:
            if self.state.step == 9:
                # Every write beyond 2 kB now fails as on a full disk.
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            original(self, *arguments)

        LoopActions.save = tight  # type: ignore[method-assign]
        return train(folder(tmp_path, *MORE))

    assert forked(work) == 1
    run_folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    assert run_folder.status.state == "failed"
    assert "checkpoint could not be written" in str(run_folder.status.reason)
    newest = newest_good(run_folder.checkpoints)
    assert newest.step == 8
    assert not newest.refused
    assert not list(run_folder.path.rglob(".tmp-*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_lost_its_write_permission_is_failed(tmp_path: Path) -> None:
    def work() -> int:
        original = LoopActions.save

        def locked(self: LoopActions, *arguments: Any) -> None:
            if self.state.step == 9:
                self.state.checkpoints.chmod(0o555)
            original(self, *arguments)

        LoopActions.save = locked  # type: ignore[method-assign]
        return train(folder(tmp_path, *MORE))

    assert forked(work) == 1
    run_folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    run_folder.checkpoints.chmod(0o755)
    assert run_folder.status.state == "failed"
    assert newest_good(run_folder.checkpoints).step == 8


def test_a_signal_before_the_first_step_is_interrupted(tmp_path: Path) -> None:
    def work() -> int:
        def struck(*_: Any, **__: Any) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        prepare_module.record = struck
        return train(folder(tmp_path))

    assert forked(work) == 143
    run_folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    assert run_folder.status.state == "interrupted"
    assert "SIGTERM" in str(run_folder.status.reason)


@pytest.mark.parametrize("kind", [RuntimeError, UserError])
def test_a_signal_that_other_code_turns_into_an_error_is_a_signal(tmp_path: Path, kind: type[Exception]) -> None:
    """As pydantic does, in Rust, with what is raised while it builds a schema."""

    def work() -> int:
        def struck(*_: Any, **__: Any) -> None:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException:
                raise kind("Error building a serializer") from None

        prepare_module.record = struck
        return train(folder(tmp_path))

    assert forked(work) == 143
    run_folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    assert run_folder.status.state == "interrupted"
    assert "SIGTERM" in str(run_folder.status.reason)


def test_a_signal_while_a_run_is_resumed_keeps_its_step(tmp_path: Path) -> None:
    """A resume that is stopped before its checkpoint is read is interrupted at the step that the run had reached."""
    with folder(tmp_path) as run_folder:
        run_folder.set_status("interrupted", "stopped", step=45)

    def work() -> int:
        prepare_module.record = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)
        return train(folder(tmp_path), resume=True)

    assert forked(work) == 143
    assert run_folder.status.step == 45
    assert "at step 45" in str(run_folder.status.reason)


def test_bad_input_found_late_is_for_the_user_and_the_run_may_start_again(tmp_path: Path) -> None:
    with folder(tmp_path, "trainer.require_flash=true") as run_folder, pytest.raises(UserError, match="require_flash"):
        train(run_folder)
    assert run_folder.status.state == "queued"
    assert run_folder.status.exit_code == 2
    run(tmp_path, "trainer.accumulate=2")


def test_require_flash_refuses_before_the_first_step(tmp_path: Path) -> None:
    overrides = ("trainer.require_flash=true", "token_mixer.dropout=0.1")
    with (
        folder(tmp_path, *overrides) as run_folder,
        pytest.raises(UserError, match=r"require_flash=true, but blocks\.0.*math"),
    ):
        train(run_folder)
    run(tmp_path / "fine", "trainer.require_flash=true", "token_mixer.dropout=0.0")


def test_data_that_changed_since_is_refused_on_resume(tmp_path: Path) -> None:
    from tests.support.engine_runs import killed_at

    assert killed_at(10, tmp_path, *MORE) == -signal.SIGKILL
    facts = next(tmp_path.glob("*/s0/run.json"))
    content = json.loads(facts.read_text())
    content["data"]["fingerprint"] = "another"
    del content["checksum"]  # as one does who edits it by hand
    facts.write_text(json.dumps(content))
    with folder(tmp_path, *MORE) as run_folder, pytest.raises(UserError, match=r"the data of .* changed"):
        train(run_folder, resume=True)


def test_two_callbacks_of_one_class_keep_their_own_state(tmp_path: Path) -> None:
    from blockyard.runs.checkpoint import read

    plain, _ = config(tmp_path, "callbacks=early_stopping", "callbacks.early_stopping.patience=9")
    second = plain["callbacks"]["early_stopping"] | {"monitor": "loss", "mode": "min"}
    with create_run(plain | {"callbacks": plain["callbacks"] | {"second": second}}) as run_folder:
        assert train(run_folder) == 0
    saved = read(run_folder.checkpoints / "last.ckpt")["callbacks"]["LoopCallback"]["watchers"]
    assert saved["early_stopping"]["best"] != saved["second"]["best"]


def test_a_failed_run_stays_failed_where_its_resume_does_not_begin(tmp_path: Path) -> None:
    with folder(tmp_path, "trainer.require_flash=true") as run_folder:
        run_folder.set_status("failed", "the disk was full", step=9, exit_code=1)
        with pytest.raises(UserError, match="require_flash"):
            train(run_folder, resume=True)
        assert (run_folder.status.state, run_folder.status.reason, run_folder.status.step) == (
            "failed",
            "the disk was full",
            9,
        )


def test_a_best_checkpoint_that_cannot_be_tested_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from blockyard.engine import summary

    original = summary.best_model

    def damaged(job: Any) -> Any:
        best = job.folder.checkpoints / "best.ckpt"
        best.write_bytes(best.read_bytes()[:-2000])
        return original(job)

    monkeypatch.setattr(summary, "best_model", damaged)
    assert json.loads((run(tmp_path).path / "summary.json").read_text())["weights"] == "last.ckpt"
    assert "best.ckpt is not tested" in caplog.text
