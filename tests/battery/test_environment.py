"""Full disks, limits, clocks, locales, streams, paths and variables.

A command works or ends with one clear message, tears no file, and once the cause is gone the same command
goes on to the same bits.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from blockyard.runs.folder import RunFolder
from tests.battery.cases import battery, cases
from tests.battery.environment_cases import CASES, COMPARE, QUESTION, TRAIN, Case
from tests.battery.environment_scene import (
    SWEEP,
    TINY,
    Ended,
    check_same,
    check_whole,
    mounted,
    only_run,
    remount,
    run_forked,
    run_started,
    run_together,
    runs_below,
)
from tests.support import engine_runs

pytestmark = battery("environment")

NAMES = [
    "with space", "a%20b", "what?", "hash#tag", "it's", 'say "so"', "line\nbreak", "ünïcode-Ω", "\u202eright-to-left",
    "n" * 200, "dot.", "-dash", "a=b", "a,b", "[list]", "{map}", "$HOME", "~", "back\\slash", "a:b", "\udcff\udcfe",
]  # fmt: skip
SIZES = ("4k", "16k", "32k", "64k", "128k", "256k", "1m")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run in sound surroundings."""
    here = tmp_path_factory.mktemp("reference")
    ended = run_forked(here, TRAIN)
    assert ended.code == 0, ended.output
    return only_run(here / "outputs")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a run that can generate."""
    outputs = tmp_path_factory.mktemp("text") / "text"
    engine_runs.text_run(outputs, "tokenizer=char")
    return outputs


def check_message(ended: Ended) -> None:
    """One clear message, without a traceback."""
    assert "Traceback" not in ended.output, ended.output
    assert "Logging error" not in ended.output, ended.output
    assert "Exception ignored" not in ended.output, ended.output
    if ended.code:
        assert re.search(r"blockyard: |failed: |cannot |failed", ended.output), ended.output


def write_questions(here: Path) -> None:
    question = SWEEP.format(base=", ".join(TINY))
    (here / "mine.yaml").write_text(question)
    (here / "claim.yaml").write_text(question.replace("better", "größer \u2013 Ω"), encoding="utf-8")


@pytest.mark.parametrize("case", cases(CASES, short=2))
def test_spoilt_surroundings(case: Case, tmp_path: Path, reference: RunFolder, text: Path) -> None:
    write_questions(tmp_path)
    verb = case.arguments[0]
    if verb in ("eval", "compare"):
        shutil.copytree(reference.path.parents[1], tmp_path / "outputs")
    if verb == "generate":
        shutil.copytree(text, tmp_path / "text")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        os.chmod(folder, 0o755)  # pytest's folders are closed to other users
    if case.started:
        ended = run_started(tmp_path, case.arguments, case.spoil, case.environment, case.streams)
    else:
        ended = run_forked(tmp_path, case.arguments, case.spoil, case.environment)
    assert ended.code in case.codes, (ended.code, ended.output)
    silent = case.streams or any(part in case.name for part in ("closed", "no-reader"))
    assert "Traceback" not in ended.output, ended.output
    if not silent and ended.code >= 0:
        check_message(ended)
    check_whole(tmp_path)
    if verb == "train":
        if ended.code:
            last = run_forked(tmp_path, again(tmp_path / "outputs"))
            assert last.code == 0, last.output
        check_same(tmp_path / "outputs", reference)
    if verb == "sweep" and "--help" not in case.arguments:
        if ended.code:
            last = run_forked(tmp_path, (*case.arguments, "--retry"))
            assert last.code == 0, last.output
        assert [run.status.state for run in runs_below(tmp_path / "outputs")] == ["done", "done"]


def again(outputs: Path) -> tuple[str, ...]:
    """The command that goes on: one that failed is resumed by name."""
    failed = any(run.status.state == "failed" for run in runs_below(outputs))
    return ("train", f"resume={only_run(outputs).path}") if failed else TRAIN


# -- disks ------------------------------------------------------------------------------------------------

DISKS = [
    *((TRAIN, f"size={size}") for size in SIZES),
    *((TRAIN, f"size=16m,nr_inodes={count}") for count in (3, 8)),
    *((QUESTION, f"size={size}") for size in ("8k", "64k", "300k")),
    *((("sweep", "search.yaml", *QUESTION[2:]), f"size={size}") for size in ("16k", "150k")),
    (TRAIN, "ro"),
    (QUESTION, "ro"),
]


@pytest.mark.parametrize("disk", cases(DISKS, short=1, names=lambda disk: f"{disk[0][0]}-{disk[1]}"))
def test_a_full_or_read_only_disk(disk: tuple[tuple[str, ...], str], tmp_path: Path, reference: RunFolder) -> None:
    arguments, options = disk
    write_questions(tmp_path)
    search = "search: {trials: 2, space: {optimizer.lr: {low: 1e-4, high: 1e-1, log: true}}}\n"
    (tmp_path / "search.yaml").write_text((tmp_path / "mine.yaml").read_text() + search)
    outputs = tmp_path / "outputs"
    with mounted(outputs, options):
        ended = run_forked(tmp_path, arguments)
        assert ended.code in (0, 1, 2), ended.output
        check_message(ended)
        check_whole(outputs)
        if ended.code:
            assert re.search(r"No space left|Read-only|disk is full|0 MiB free", ended.output), ended.output
        remount(outputs, "rw,size=64m,nr_inodes=10000")
        last = run_forked(tmp_path, (*arguments, "--retry") if arguments[0] == "sweep" else again(outputs))
        assert last.code == 0, last.output
        if arguments[0] == "train":
            check_same(outputs, reference)


def test_a_disk_that_is_full_for_the_page(tmp_path: Path, reference: RunFolder) -> None:
    shutil.copytree(reference.path.parents[1], tmp_path / "outputs")
    (tmp_path / "small").mkdir()
    arguments = (*COMPARE[:-1], "small/page.html")
    with mounted(tmp_path / "small", "size=16k"):
        ended = run_forked(tmp_path, arguments)
        assert ended.code in (1, 2), ended.output
        check_message(ended)
        assert list((tmp_path / "small").iterdir()) == []
        remount(tmp_path / "small", "size=16m")
        assert run_forked(tmp_path, arguments).code == 0


# -- paths ------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("name", cases(NAMES, short=1, names=ascii))
def test_a_working_folder_of_any_name(name: str, tmp_path: Path, reference: RunFolder) -> None:
    """Train, find the run again, compare and sweep with a search where the folder has this name."""
    here = tmp_path / name
    here.mkdir()
    (here / "find.yaml").write_text(
        SWEEP.format(base=", ".join(TINY)) + "search: {trials: 1, space: {optimizer.lr: {low: 1e-4, high: 1e-1}}}\n"
    )
    for arguments in (TRAIN, ("eval", "run=last"), ("sweep", "find.yaml", *QUESTION[2:], "outputs=found")):
        ended = run_forked(here, arguments)
        check_message(ended)
        assert ended.code == (0 if _is_utf8(name) else 2), ended.output
    if _is_utf8(name):
        check_same(here / "outputs", reference)
    else:
        assert not (here / "outputs").exists()
    assert {path.name for path in tmp_path.iterdir()} == {name}


def _is_utf8(name: str) -> bool:
    return name.encode(errors="replace").decode() == name


@pytest.mark.parametrize("name", cases([n for n in NAMES if n not in ("~", "$HOME")][::2], short=0, names=ascii))
def test_outputs_of_any_name(name: str, tmp_path: Path, reference: RunFolder) -> None:
    """The folder is the one that was named, or the name is refused before anything is written."""
    quoted = "'" + name.replace("'", "\\'") + "'"  # Hydra reads other backslashes as they are
    ended = run_forked(tmp_path, (*TRAIN, f"outputs={quoted}"))
    check_message(ended)
    assert ended.code in (0, 2), ended.output
    if ended.code:
        assert list(tmp_path.iterdir()) == []
    else:
        check_same(tmp_path / name, reference)


# -- the rest ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", cases([TRAIN, QUESTION, ("check", *TINY), ("list", "norm")], short=0, names=str))
def test_a_working_folder_that_was_removed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    def spoil() -> None:
        os.mkdir(tmp_path / "gone")
        os.chdir(tmp_path / "gone")
        os.rmdir(tmp_path / "gone")

    ended = run_started(tmp_path, arguments, spoil)
    assert ended.code == 2, ended.output
    check_message(ended)


@pytest.mark.parametrize("mask", cases([0o077, 0o777], short=0, names=oct))
def test_umask(mask: int, tmp_path: Path, reference: RunFolder) -> None:
    ended = run_forked(tmp_path, TRAIN, lambda: os.umask(mask))
    assert ended.code == 0, ended.output
    check_same(tmp_path / "outputs", reference)


@pytest.mark.parametrize(
    "commands",
    cases(
        [[TRAIN, TRAIN], [TRAIN] * 4, [TRAIN, COMPARE, ("check", *TINY)], [QUESTION, QUESTION], [QUESTION, TRAIN]],
        short=0,
        names=lambda commands: "+".join(arguments[0] for arguments in commands),
    ),
)
def test_commands_at_the_same_time(commands: list[tuple[str, ...]], tmp_path: Path, reference: RunFolder) -> None:
    """One trains; the others say who does, find it done, or wait."""
    write_questions(tmp_path)
    ends = run_together(tmp_path, commands)
    assert any(ended.code == 0 for ended in ends)
    for arguments, ended in zip(commands, ends, strict=True):
        check_message(ended)
        if ended.code:
            allowed = "in use by process" if arguments[0] == "train" else "no run|not found|nothing|0 runs|no finished"
            assert re.search(allowed, ended.output), ended.output
        if arguments[0] == "sweep":
            assert ended.code == 0, ended.output
    for run in runs_below(tmp_path / "outputs"):
        assert run.status.state == "done"
        assert len(engine_runs.rows(run)) == len(engine_runs.rows(reference))
