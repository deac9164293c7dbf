"""Whatever a component raises or computes in any hook is recorded: no exit code 0, no traceback, no spoiled weights."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import torch

from blockyard.engine import setup
from blockyard.engine.run import train
from blockyard.runs.checkpoint import newest_good
from blockyard.runs.folder import RunFolder
from blockyard.runs.start import create_run
from tests.battery.cases import battery, cases
from tests.battery.faults import (
    COMPONENTS,
    LIGHTNING,
    LIGHTNING_HOOKS,
    LOGGER_HOOKS,
    NUMBERS,
    RAISED,
    RUN_HOOKS,
    WITH_NUMBERS,
    Fault,
    plant,
    plant_logger,
)
from tests.support.engine_runs import assert_same_bits, config, state
from tests.support.every import every
from tests.support.fork import forked

pytestmark = battery("hooks")

PLACES = [
    *COMPONENTS,
    *(f"callback.{hook}" for hook in RUN_HOOKS),
    *(f"{LIGHTNING}.{hook}" for hook in LIGHTNING_HOOKS),
]
_ALWAYS = ("exit0", "StopIteration")  # ends that libraries take for a good one
_OTHERS = [kind for kind in RAISED if kind not in _ALWAYS]
# These kinds everywhere, and two of the others in turn.
ERRORS = [
    (place, kind)
    for number, place in enumerate(PLACES)
    for kind in (*_ALWAYS, *(_OTHERS[(2 * number + offset) % len(_OTHERS)] for offset in range(2)))
]
WORKERS = [(place, kind) for place in ("prepare",) for kind in RAISED]
WRONG_NUMBERS = [(place, kind) for place in WITH_NUMBERS for kind in NUMBERS]
IN_LOGGERS = [
    (hook, kind)
    for number, hook in enumerate(LOGGER_HOOKS)
    for kind in (*_ALWAYS, *(_OTHERS[(2 * number + offset) % len(_OTHERS)] for offset in range(2)))
]
MORE = ("callbacks.checkpoint.every=3", "trainer.max_steps=16")


def _name(case: tuple[str, str]) -> str:
    return "-".join(case)


def _train(outputs: Path, place: str, fault: Fault | None, *overrides: str, message_file: Path | None = None) -> int:
    """Train in a fork with the fault planted, and its output in a file."""
    plain, choices = config(outputs, *MORE, *overrides)

    def work() -> int:
        if message_file is not None:
            handle = os.open(message_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
        original = setup.prepare

        def prepare(*arguments: object, **settings: object) -> object:
            job = original(*arguments, **settings)  # type: ignore[arg-type]
            plant(place, job, fault)
            return job

        setup.prepare = prepare  # type: ignore[assignment]
        if fault is not None and place.startswith("logger."):
            setup.prepare = original
            plant_logger(place.partition(".")[2], fault)
        with create_run(plain, command=["test"], choices=choices) as run_folder:
            code = train(run_folder, resume=run_folder.resumes)
        sys.stdout.flush()
        sys.stderr.flush()
        return code

    return forked(work, 400)


def _only(outputs: Path) -> RunFolder:
    (path,) = outputs.glob("*/s0")
    return RunFolder.open(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """The runs without a fault, with and without a Lightning callback."""
    runs = {}
    for kind in ("", LIGHTNING):
        outputs = tmp_path_factory.mktemp("whole")
        assert _train(outputs, kind, None) == 0
        runs[kind] = _only(outputs)
    return runs


def _assert_nothing_spoiled(run_folder: RunFolder) -> None:
    for name in ("last.ckpt", "best.ckpt"):
        if (run_folder.checkpoints / name).exists():
            weights = (value for key, value in state(run_folder, name).items() if not key.startswith("optimizer."))
            assert every(torch.isfinite(value).all() for value in weights if value.dtype.is_floating_point), name
    assert not newest_good(run_folder.checkpoints).refused
    assert not list(run_folder.path.rglob(".tmp-*"))


def _assert_failed(run_folder: RunFolder, message_file: Path) -> None:
    status = run_folder.status
    assert (status.state, status.exit_code) == ("failed", 1), status
    assert status.reason
    assert status.reason.isprintable(), status
    text = message_file.read_text(encoding="utf-8")
    assert "Traceback" not in text, text
    assert every(line.isprintable() for line in text.splitlines()), text
    assert f"failed: {status.reason}" in text
    assert not (run_folder.path / "summary.json").exists()


@pytest.mark.parametrize("case", cases(ERRORS, short=4, names=_name))
@pytest.mark.sampled(100)
def test_whatever_a_component_raises_is_a_failure_that_a_resume_makes_good(
    tmp_path: Path, whole: dict[str, RunFolder], case: tuple[str, str]
) -> None:
    place, kind = case
    code = _train(tmp_path, place, Fault(kind), message_file=tmp_path / "message")
    run_folder = _only(tmp_path)
    assert code == 1, run_folder.status
    _assert_failed(run_folder, tmp_path / "message")
    _assert_nothing_spoiled(run_folder)
    with run_folder.lock():
        run_folder.set_status("interrupted", "for this test")
    assert _train(tmp_path, place, None) == 0
    assert_same_bits(run_folder, whole[LIGHTNING if place.startswith(LIGHTNING) else ""])


@pytest.mark.parametrize("case", cases(WORKERS, short=1, names=_name))
def test_whatever_is_raised_in_a_worker_process_is_a_failure(tmp_path: Path, case: tuple[str, str]) -> None:
    # A worker does not see the steps of the main process: its fault is there from its first batch.
    place, kind = case
    code = _train(tmp_path, place, _early(kind), "trainer.num_workers=1", message_file=tmp_path / "message")
    run_folder = _only(tmp_path)
    assert code == 1, run_folder.status
    _assert_failed(run_folder, tmp_path / "message")


def _early(kind: str) -> Fault:
    fault = Fault(kind)
    fault.__class__ = type("Early", (Fault,), {"early": property(lambda _: True, lambda *_: None)})
    return fault


@pytest.mark.parametrize("case", cases(WRONG_NUMBERS, short=3, names=_name))
def test_a_number_that_is_none_is_never_saved(tmp_path: Path, case: tuple[str, str]) -> None:
    place, kind = case
    code = _train(tmp_path, place, Fault(kind), message_file=tmp_path / "message")
    run_folder = _only(tmp_path)
    _assert_nothing_spoiled(run_folder)
    if code or kind != "1e38":  # that one may be survived
        assert code == 1, run_folder.status
        _assert_failed(run_folder, tmp_path / "message")
        assert re.search("NotFinite|not finite", str(run_folder.status.reason))


@pytest.mark.parametrize("case", cases(IN_LOGGERS, short=2, names=_name))
def test_whatever_a_logger_raises_the_run_goes_on(
    tmp_path: Path, whole: dict[str, RunFolder], case: tuple[str, str]
) -> None:
    hook, kind = case
    assert _train(tmp_path, f"logger.{hook}", Fault(kind), message_file=tmp_path / "message") == 0
    run_folder = _only(tmp_path)
    assert run_folder.status.state == "done"
    text = (tmp_path / "message").read_text(encoding="utf-8")
    assert "Traceback" not in text, text
    assert f"failed to {hook}" in text
    assert_same_bits(run_folder, whole[""])


def test_every_hook_of_the_interfaces_is_tried() -> None:
    from blockyard.engine.callbacks.base import RunCallback

    hooks = {name for name, value in vars(RunCallback).items() if callable(value)}
    # `in_place` runs inside an evaluation, whose faults are those of "evaluation", and for averages only; the check
    # asks for `model_problems`, before there is a run.
    assert hooks - {"load_state_dict", "in_place", "model_problems"} == set(RUN_HOOKS)
    assert {place for place, _ in ERRORS} == set(PLACES)
    assert {kind for _, kind in ERRORS} == set(RAISED)
    assert len([hook for hook in LIGHTNING_HOOKS if "train" in hook]) >= 6
