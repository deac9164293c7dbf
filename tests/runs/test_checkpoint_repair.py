"""Before a run is resumed, its checkpoints are brought to one state, whatever was killed or damaged before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blockyard import atomic_files
from blockyard.runs.checkpoint import BEST, LAST, PREVIOUS, BadCheckpointError, newest_good, read, verify
from blockyard.runs.checkpoint_io import repair
from blockyard.runs.metrics import MetricsWriter, lost_rows
from blockyard.runs.not_started import AlreadyDoneError
from blockyard.runs.start import create_run
from tests.runs.checkpoints import checkpoint_io, tiny_content

NAMES = (LAST, PREVIOUS, BEST)


def _save(folder: Path, *names_and_steps: tuple[str, int]) -> None:
    for name, step in names_and_steps:
        checkpoint_io().save_checkpoint(tiny_content(step), folder / name)


def _steps(folder: Path) -> list[int]:
    return [verify(folder / name).step for name in NAMES]


def test_a_kill_between_best_and_last_leaves_the_newer_one_as_last(tmp_path: Path) -> None:
    _save(tmp_path, (LAST, 1), (LAST, 2), (BEST, 1), (BEST, 3))
    assert repair(tmp_path, newest_good(tmp_path), best_step=3) == []
    assert _steps(tmp_path) == [3, 2, 3]
    assert repair(tmp_path, newest_good(tmp_path), best_step=3) == []  # once more changes nothing
    _save(tmp_path, (LAST, 4))
    assert _steps(tmp_path) == [4, 3, 3]


def test_a_damaged_last_is_kept_aside_and_never_becomes_the_previous(tmp_path: Path) -> None:
    _save(tmp_path, (LAST, 1), (LAST, 2), (BEST, 1))
    (tmp_path / LAST).write_bytes(b"damaged")
    assert repair(tmp_path, newest_good(tmp_path), best_step=1) == ["last.ckpt is kept as last.damaged.ckpt"]
    _save(tmp_path, (LAST, 3))
    assert _steps(tmp_path) == [3, 1, 1]
    assert (tmp_path / "last.damaged.ckpt").read_bytes() == b"damaged"


@pytest.mark.parametrize("other", [LAST, PREVIOUS])
def test_lost_best_weights_come_back_from_another_file(tmp_path: Path, other: str) -> None:
    _save(tmp_path, (LAST, 1), (LAST, 2), (BEST, 1))
    (tmp_path / BEST).unlink()
    step = verify(tmp_path / other).step
    assert repair(tmp_path, newest_good(tmp_path), best_step=step) == []
    assert verify(tmp_path / BEST).step == step


def test_best_weights_that_nothing_has_are_reported(tmp_path: Path) -> None:
    _save(tmp_path, (LAST, 5), (LAST, 6))
    (message,) = repair(tmp_path, newest_good(tmp_path), best_step=1)
    assert "those of step 1, are lost" in message


def test_a_save_leaves_no_temporary_file_where_last_and_previous_are_one(tmp_path: Path) -> None:
    """POSIX: renaming one link to a file over another does nothing, and the old name stays."""
    _save(tmp_path, (LAST, 1))
    os.link(tmp_path / LAST, tmp_path / PREVIOUS)
    _save(tmp_path, (LAST, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == [LAST, PREVIOUS]
    assert [verify(tmp_path / name).step for name in (LAST, PREVIOUS)] == [2, 1]


def test_a_folder_and_a_pipe_in_the_way_of_a_save_are_moved_or_replaced(tmp_path: Path) -> None:
    (tmp_path / LAST).mkdir()
    os.mkfifo(tmp_path / PREVIOUS)
    _save(tmp_path, (LAST, 1), (LAST, 2))
    assert [verify(tmp_path / name).step for name in (LAST, PREVIOUS)] == [2, 1]
    assert (tmp_path / "last.damaged.ckpt").is_dir()


@pytest.mark.timeout(60)  # a pipe that is opened waits for a writer
@pytest.mark.parametrize("kind", ["pipe", "device", "dangling"])
def test_special_files_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    _save(tmp_path, (PREVIOUS, 1))
    path = tmp_path / LAST
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    checkpoint = newest_good(tmp_path)
    assert (checkpoint.path, len(checkpoint.refused)) == (tmp_path / PREVIOUS, 1)
    with pytest.raises((BadCheckpointError, FileNotFoundError)):
        read(path)


def test_leftovers_in_a_finished_run_are_removed_unless_somebody_writes(tmp_path: Path) -> None:
    config = {"seed": 0, "name": "run", "outputs": str(tmp_path), "model": {"dim": 4}}
    with create_run(config) as run:
        run.write_json("summary.json", {"metrics": {}})
        run.set_status("done", exit_code=0)
    old, new = run.checkpoints / ".tmp-previous.ckpt-1-a", run.path / ".tmp-extrapolation-test.json-2-b"
    for path in (old, new):
        path.write_text("x")
    os.utime(old, (1, 1))
    with pytest.raises(AlreadyDoneError):
        create_run(config)
    assert not old.exists()
    assert new.exists()


def test_lost_rows_are_counted(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.csv")
    for step in range(1, 6):
        writer.append(step, {"a": step})
    writer.close()
    assert lost_rows(tmp_path, 5, (5, 5)) is None
    assert lost_rows(tmp_path, 3, (3, 3)) is None
    assert "5 rows up to step 9, where 8 were logged" in str(lost_rows(tmp_path, 9, (8, 8)))
    (tmp_path / "metrics.csv").unlink()
    assert "0 rows" in str(lost_rows(tmp_path, 5, (5, 5)))
    assert lost_rows(tmp_path, 5, (0, 0)) is None
    os.mkfifo(tmp_path / "metrics.csv")
    assert "0 rows" in str(lost_rows(tmp_path, 5, (5, 5)))


def test_a_checked_file_that_was_changed_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"a": [1, 0.1, None, "é"], "b": {"c": -2.5e300}}
    atomic_files.write_json(path, value, checked=True)
    assert atomic_files.read_json(path) == value
    text = path.read_text()
    path.write_text(text.replace("0.1", "0.2"))
    with pytest.raises(ValueError, match="checksum is wrong"):
        atomic_files.read_json(path)
    atomic_files.write_json(path, value)
    assert atomic_files.read_json(path) == value


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_not_read(tmp_path: Path, make: object) -> None:
    path = tmp_path / "a.json"
    make(path)  # type: ignore[operator]
    with pytest.raises(OSError, match="not a regular file"):
        atomic_files.read_json(path)
    assert not atomic_files.is_regular(path)
