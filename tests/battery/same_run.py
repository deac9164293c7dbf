"""Whether two finished runs are the same, file by file, to the last bit; and whether a killed one has torn files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from blockyard.atomic_files import TEMPORARY, read_json, read_yaml
from blockyard.engine.baselines import LOST
from blockyard.runs.checkpoint import BEST, LAST, PREVIOUS, read
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import held
from blockyard.runs.metrics import parse
from tests.support.engine_runs import rows

# Of the clock and the machine: in summary.json, and in the state that checkpoints keep of the stopwatch.
CLOCK = {"seconds", "seconds_to_first_step", "windows", "first", "load", "peak_memory"}
FASTER = ("step_seconds", "_per_second", "decoding")  # in the names of measured speeds
APART = {"run.json", "status.json", "summary.json", "metrics.csv", "config.yaml"}  # compared by content, not as bytes
LOGGERS = {"wandb", "tensorboard", "trackio"}
PROFILE = "fit-profile.txt"

ENDING = 60.0  # seconds that processes of a killed run may take to end on a busy machine


def assert_same_run(ours: RunFolder, theirs: RunFolder) -> None:
    """Both are done, with equal files: weights, optimizer, callbacks, metrics, summary, and what components wrote."""
    for each in (ours, theirs):
        assert each.status.state == "done", str(each.status)
        assert each.status.exit_code == 0
    assert ours.status.step == theirs.status.step
    assert ours.identity == theirs.identity
    assert rows(ours) == rows(theirs)
    assert parse(ours.path / "metrics.csv")[0::2] == parse(theirs.path / "metrics.csv")[0::2]  # columns, and whole
    ours_summary, theirs_summary = ours.summary(), theirs.summary()
    # Baselines are computed when a run is done. A kill that falls there ends the process and not the run, which then
    # has LOST for what was left; nothing resumes a run that is done. Any other reason is a difference.
    if set(ours_summary.get("baselines_missing", {}).values()) == {LOST}:
        for summary in (ours_summary, theirs_summary):
            for key in ("baselines", "baseline_notes", "baselines_missing"):
                summary.pop(key, None)
    _assert_same(_without_clock(ours_summary), _without_clock(theirs_summary), "summary.json")
    for name in (LAST, BEST):
        _assert_same(_state(ours, name), _state(theirs, name), name)
    assert _files(ours) == _files(theirs), sorted(_files(ours) ^ _files(theirs))
    for name in _files(ours) - APART:
        if not name.startswith("checkpoints/"):
            assert (ours.path / name).read_bytes() == (theirs.path / name).read_bytes(), name
    read(ours.checkpoints / PREVIOUS, identity=ours.identity, seed=ours.seed)
    assert temporary_files(ours.path) == []


def assert_nothing_torn(path: Path) -> None:
    """Every file of a run that was killed can be read, nobody holds the run, and its status is not `running`."""
    deadline = time.monotonic() + ENDING
    while held(path) and time.monotonic() < deadline:  # workers of a killed process end a moment after it
        time.sleep(0.02)
    assert not held(path)
    for file in path.rglob("*"):
        if not file.is_file() or file.name.startswith(TEMPORARY) or set(file.relative_to(path).parts) & LOGGERS:
            continue
        if file.suffix == ".json":
            read_json(file)
        elif file.suffix == ".yaml":
            read_yaml(file)
        elif file.suffix == ".ckpt":
            read(file)
        elif file.name == "metrics.csv":
            assert parse(file)[2] != "damaged"
    if (path / "config.yaml").exists():
        assert RunFolder.open(path).status.state != "running"


def leave_alone(path: Path) -> None:
    """Make temporary files as old as if nobody had come back for an hour.

    A run that is killed after it is done, as it writes its baselines, leaves one, too. The next start removes it if
    nobody has written to it for a minute, as `blockyard eval` may in a finished run.
    """
    an_hour_ago = time.time() - 3600
    for file in path.rglob(f"{TEMPORARY}*"):
        os.utime(file, (an_hour_ago, an_hour_ago))


def temporary_files(path: Path) -> list[str]:
    """Files in a folder that a writer left unfinished."""
    return [file.name for file in path.rglob(f"{TEMPORARY}*")]


def _files(run: RunFolder) -> set[str]:
    paths = {path.relative_to(run.path) for path in run.path.rglob("*") if path.is_file()}
    return {str(path) for path in paths if path.parts[0] not in LOGGERS and path.name != PROFILE}


def _state(run: RunFolder, name: str) -> dict[str, Any]:
    """A whole checkpoint but for its clock and Lightning's counters of the batches of one process."""
    content = read(run.checkpoints / name, identity=run.identity, seed=run.seed)
    return {key: _without_clock(value) for key, value in content.items()}


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if key not in CLOCK}
        return {
            key: _without_clock(part) for key, part in kept.items() if not any(marker in str(key) for marker in FASTER)
        }
    return [_without_clock(part) for part in value] if isinstance(value, list | tuple) else value


def _assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Equal types, keys and values; tensors to the last bit, NaN equal to itself."""
    if isinstance(ours, dict):
        assert isinstance(theirs, dict), where
        assert ours.keys() == theirs.keys(), f"{where}: {ours.keys() ^ theirs.keys()}"
        for key, value in ours.items():
            _assert_same(value, theirs[key], f"{where} {key}")
    elif isinstance(ours, list):
        assert isinstance(theirs, list), where
        assert len(ours) == len(theirs), where
        for index, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            _assert_same(left, right, f"{where} [{index}]")
    elif isinstance(ours, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{where}: {text}")
    else:
        assert ours == theirs or (ours != ours and theirs != theirs), f"{where}: {ours!r} is not {theirs!r}"
