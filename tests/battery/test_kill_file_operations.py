"""SIGKILL before and after every file operation of a run; the resumed run ends as if nothing had happened.

A first run counts the operations, so an operation that is new in the code is a new case here. The cases are dealt out
to a fixed number of tests, each of which takes every so many of them.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from blockyard.runs.checkpoint import verify
from tests.battery import killed_runs
from tests.battery.cases import battery, cases
from tests.battery.file_operations import Kill
from tests.battery.killed_runs import Job, assert_as_undisturbed, kill_all, only_run, train_all

pytestmark = battery("kill_file_operations")

PARTS = 40
LEAST = 100  # kills in a new run alone


class Scene(NamedTuple):
    """What is there before the run that is killed: nothing, or the folder that another kill has left."""

    name: str
    config: str
    before: Path | None
    kills: tuple[Kill, ...]
    force: bool = False


def _kinds(operations: list[str]) -> list[str]:
    """The operations without what differs between processes and runs."""
    return [re.sub(r"-\d+-[0-9a-f]{16}$|\w+-[0-9a-f]{10}/", "", operation) for operation in operations]


def _kills(operations: list[str], expected: list[str] | None = None) -> tuple[Kill, ...]:
    """Before and after each operation; where `known` operations are given, only of those that are none of them."""
    new = [number for number, kind in enumerate(_kinds(operations)) if kind not in (expected or ())]
    return tuple(Kill(number, after) for number in new for after in (False, True))


@functools.cache
def _whole(folder: Path, config: str) -> tuple[Path, list[str]]:
    """An undisturbed run, and its operations."""
    whole = folder / f"whole-{config}"
    whole.mkdir(parents=True)
    return whole, killed_runs.operations(config, whole, folder / f"{config}.json")


@functools.cache
def _scenes(folder: Path) -> tuple[Scene, ...]:
    whole, image = _whole(folder, "image")
    _, text = _whole(folder, "text")
    kinds = _kinds(image)
    scenes = [Scene("new", "image", None, _kills(image)), Scene("new", "text", None, _kills(text, kinds))]
    # The last save of best.ckpt is there and that of last.ckpt is not: the resume has files to repair.
    between = max(number for number, kind in enumerate(kinds) if kind.endswith("checkpoints/.tmp-best.ckpt")) + 1
    broken = folder / "between"
    broken.mkdir()
    kill_all([(Job("image", broken), Kill(between, after=False))])
    scenes.append(_resumed(folder, "repaired", broken))
    damaged = folder / "damaged"
    _copy(broken, damaged)
    for name in ("best.ckpt", "last.ckpt"):
        path = only_run(damaged).checkpoints / name
        path.write_bytes(path.read_bytes()[:-100])
    scenes.append(_resumed(folder, "damaged", damaged, expected=kinds))
    again = folder / "again"
    _copy(whole, again)
    operations = killed_runs.operations("image", again, folder / "again.json", force=True)
    begun = next(number for number, kind in enumerate(_kinds(operations)) if "config.yaml" in kind) + 4
    scenes.append(Scene("forced", "image", whole, _kills(operations[:begun]), force=True))
    return tuple(scenes)


def _resumed(folder: Path, name: str, before: Path, expected: list[str] | None = None) -> Scene:
    tried = folder / f"tried-{name}"
    _copy(before, tried)
    operations = killed_runs.operations("image", tried, folder / f"{name}.json")
    return Scene(name, "image", before, _kills(operations, expected))


def _copy(source: Path, target: Path) -> None:
    """Copy a folder; what is one file under two names stays one."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the runs that all tests share."""
    return tmp_path_factory.mktemp("kills")


@pytest.mark.full
@pytest.mark.parametrize("case", cases(range(PARTS), short=1))
def test_a_run_that_was_killed_there_ends_as_if_it_had_not_been(
    tmp_path: Path, folder: Path, case: int, record_property: pytest.RecordProperty
) -> None:
    scenes = _scenes(folder)
    assert len(scenes[0].kills) >= LEAST
    every = [(scene, kill) for scene in scenes for kill in scene.kills]
    mine = every[case::PARTS]
    jobs = []
    for scene, kill in mine:
        outputs = tmp_path / f"{scene.name}-{scene.config}-{kill}"
        if scene.before is None:
            outputs.mkdir()
        else:
            _copy(scene.before, outputs)
        jobs.append(Job(scene.config, outputs))
    kill_all([(job._replace(force=scene.force), kill) for job, (scene, kill) in zip(jobs, mine, strict=True)])
    assert train_all(jobs) == [0] * len(jobs)
    assert train_all(jobs) == [0] * len(jobs)  # done already
    for job in jobs:
        _forget_what_is_kept(job.outputs)
        try:
            assert_as_undisturbed(job.outputs, _whole(folder, job.config)[0])
        except AssertionError as error:
            raise AssertionError(f"{job.outputs.name}: {error}") from error
        shutil.rmtree(job.outputs)
    record_property("cases", len(mine))


def _forget_what_is_kept(outputs: Path) -> None:
    """Remove what a run keeps on purpose: the files it refused, and the folder that force=true replaced."""
    for path in outputs.glob("outputs/*/s0/checkpoints/*.damaged.ckpt"):
        path.unlink()
    for path in outputs.glob("outputs/*/.replaced-*"):
        shutil.rmtree(path)


def test_the_last_save_is_seen_half_done(folder: Path) -> None:
    """The scene that is repaired is the one it is meant to be: best.ckpt is newer than last.ckpt."""
    broken = next(scene for scene in _scenes(folder) if scene.name == "repaired").before
    assert broken is not None
    checkpoints = only_run(broken).checkpoints
    assert [verify(checkpoints / name).step for name in ("best.ckpt", "last.ckpt")] == [4, 3]
