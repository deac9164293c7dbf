"""`blockyard runs push` and `pull`: what travels, twice, changed, selected, broken off; on memory:// and file://."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from blockyard.cli import main
from blockyard.remote import pull as pull_module
from blockyard.remote.address import Remote
from blockyard.runs.lock import RunLock
from blockyard.runs.members import write_checked
from blockyard.runs.notes import RunNotes, write_notes
from tests.remote.copied_runs import files, make_outputs, typed
from tests.support.fork import forked


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_outputs(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def outputs(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(saved, tmp_path / "outputs"))


@pytest.fixture(params=["file", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/store"
        return
    folder = f"/{uuid.uuid4().hex}"
    yield f"memory:/{folder}"
    memory = fsspec.filesystem("memory")
    if memory.exists(folder):
        memory.rm(folder, recursive=True)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def here(store: Path) -> str:
    return f"file://{store}"


def test_a_sweep_comes_back_as_it_was_sent(
    outputs: Path, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = typed(capsys, "push", address)
    assert "4 runs and 1 sweep copied" in out
    assert "1 skipped" in out
    assert "running" not in err.partition("it is ")[0]
    assert "it is interrupted" in err  # no process runs it
    assert "not copied: own.bin of 3 runs" in out
    out, _ = typed(capsys, "pull", address, "outputs=mine")
    assert "4 runs and 1 sweep copied to mine" in out
    sent, got = files(outputs), files(tmp_path / "mine")
    assert got == {name: sent[name] for name in got}
    left = {name.rpartition("/")[2] for name in sent.keys() - got.keys()}
    assert left >= {"debug.log", "own.bin", "search.db"}
    assert not {name for name in got if "wandb" in name}
    # Of the four ended runs nothing else is missing.
    assert left <= {"debug.log", "own.bin", "search.db", *(name.rpartition("/")[2] for name in running(sent))}
    assert not list((tmp_path / "mine").glob(".tmp-*"))
    capsys.readouterr()
    assert main(["compare", "norms", "outputs=mine"]) == 0
    assert "pre" in capsys.readouterr().out


def running(sent: dict[str, bytes]) -> list[str]:
    folders = [
        name.removesuffix("status.json")
        for name, content in sent.items()
        if name.endswith("status.json") and json.loads(content)["state"] == "running"
    ]
    return [name for name in sent if name.startswith(tuple(folders))]


def test_what_is_there_is_not_copied_again(outputs: Path, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    typed(capsys, "push", address)
    remote = Remote.open(address)
    times = {name: info.get("mtime", info.get("created")) for name, info in listed(remote)}
    out, _ = typed(capsys, "push", address)
    assert "0 runs copied" in out
    assert "5 there already" in out
    assert {name: info.get("mtime", info.get("created")) for name, info in listed(remote)} == times
    typed(capsys, "pull", address, "outputs=mine")
    out, _ = typed(capsys, "pull", address, "outputs=mine")
    assert "5 there already" in out


def listed(remote: Remote) -> list[tuple[str, Any]]:
    remote.file_system.invalidate_cache()
    return list(remote.file_system.find(remote.root, detail=True).items())


def test_what_differs_is_told_and_kept_until_it_is_replaced(
    outputs: Path, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(capsys, "push", address)
    typed(capsys, "pull", address, "outputs=mine")
    run = next(outputs.glob("*/s0"))
    name = f"{run.parent.name}/s0"
    write_notes(run, RunNotes(("good",)))
    before = files(tmp_path / "mine")
    out, err = typed(capsys, "push", address, code=1)
    assert "1 differs" in out
    assert f"{name}: differs: the copy at {address} differs: in notes.json" in err
    assert "--replace" in err
    typed(capsys, "pull", address, "outputs=mine")
    assert files(tmp_path / "mine") == before
    out, _ = typed(capsys, "push", address, "--replace")
    assert "1 file, 0.0 MB" in out  # the others are there
    out, err = typed(capsys, "pull", address, "outputs=mine", code=1)
    assert f"{name}: differs: the one in mine differs in notes.json" in err
    assert files(tmp_path / "mine") == before
    (tmp_path / "mine" / name / "own.bin").write_text("mine")
    out, err = typed(capsys, "pull", address, "outputs=mine", "--replace")
    assert "the former one is kept as" in err
    assert (tmp_path / "mine" / name / "notes.json").exists()
    (kept,) = (tmp_path / "mine" / run.parent.name).glob(".replaced-s0-*")
    assert (kept / "own.bin").read_text() == "mine"


def test_a_changed_sweep_replaces_the_former_one(
    outputs: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(capsys, "push", here(store))
    typed(capsys, "pull", here(store), "outputs=mine")
    plan = outputs / "sweeps/norms/plan.json"
    plan.write_text(plan.read_text() + "\n")
    typed(capsys, "push", here(store), "--replace")
    _, err = typed(capsys, "pull", here(store), "outputs=mine", code=1)
    assert "sweeps/norms: differs: the one in mine differs in plan.json" in err
    typed(capsys, "pull", here(store), "outputs=mine", "--replace")
    assert (tmp_path / "mine/sweeps/norms/plan.json").read_bytes() == plan.read_bytes()
    assert (tmp_path / "mine/sweeps/norms/report.html").exists()
    out, err = typed(capsys, "sweep=norms", "outputs=mine")
    assert "4 runs of 4" in out


@pytest.mark.parametrize(
    ("conditions", "runs", "sweeps"),
    [
        (["sweep=norms"], 4, 1),
        (["arm=post"], 2, 0),
        (["seed=0"], 2, 0),
        (["state=failed"], 1, 0),
        (["test/accuracy>0.92"], 1, 0),
        (["block=post_norm", "seed=1"], 1, 0),
    ],
)
def test_conditions_select_on_both_sides(
    conditions: list[str],
    runs: int,
    sweeps: int,
    outputs: Path,
    address: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed(capsys, "push", address, *conditions)
    typed(capsys, "pull", address, "outputs=one")
    assert counts(tmp_path / "one") == (runs, sweeps)
    typed(capsys, "push", address)
    typed(capsys, "pull", address, *conditions, "outputs=two")
    assert counts(tmp_path / "two") == (runs, sweeps)


def counts(outputs: Path) -> tuple[int, int]:
    return len(list(outputs.glob("*/s*/config.yaml"))), len(list(outputs.glob("sweeps/*/plan.json")))


def dying_before(number: int, function: Callable[..., None]) -> Callable[..., None]:
    """Return the function, which kills its process before the given call."""
    calls = iter(range(1, 1000))

    def call(*arguments: Any) -> None:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        function(*arguments)

    return call


def push_and_die(number: int, address: str, outputs: Path) -> int:
    Remote.write = dying_before(number, Remote.write)  # type: ignore[method-assign]
    return main(["runs", "push", address, "seed=0", f"outputs={outputs}"])


def pull_and_die(number: int, address: str, outputs: Path) -> int:
    pull_module.write_checked = dying_before(number, write_checked)
    return main(["runs", "pull", address, f"outputs={outputs}"])


def test_a_push_that_was_killed_is_no_copy_and_goes_on(
    outputs: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed before the first, a middle and the last file of a run, and before its manifest, twice in a row."""
    sent = files(outputs)
    for number in (1, 4, 7, 8, 9, 10):
        assert forked(partial(push_and_die, number, here(store), outputs)) == -signal.SIGKILL
        shutil.rmtree(tmp_path / "mine", ignore_errors=True)
        whole = list(store.rglob("manifest.json"))
        if store.exists():
            typed(capsys, "pull", here(store), "outputs=mine")
        assert counts(tmp_path / "mine") == (len(whole), 0)
        got = files(tmp_path / "mine")
        assert got == {name: sent[name] for name in got}
        if number % 2:
            shutil.rmtree(store, ignore_errors=True)  # the other pushes go on from the one before
    assert forked(partial(push_and_die, 1000, here(store), outputs)) == 0
    typed(capsys, "pull", here(store), "outputs=whole")
    assert counts(tmp_path / "whole") == (2, 0)


def test_a_pull_that_was_killed_leaves_no_part_and_goes_on(
    outputs: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(capsys, "push", here(store))
    sent = files(outputs)
    mine = tmp_path / "mine"
    for number in (1, 4, 9, 12, 8, 2):
        assert forked(partial(pull_and_die, number, here(store), mine)) == -signal.SIGKILL
        assert len(list(mine.glob(".tmp-pull-*"))) == 1  # the one of the process before is gone
        got = {name: content for name, content in files(mine).items() if not name.startswith(".tmp-")}
        assert got == {name: sent[name] for name in got}
        for run in mine.glob("*/s*/config.yaml"):
            name = run.parent.relative_to(mine).as_posix()
            expected = {path for path in sent if path.startswith(name) and not path.endswith((".bin", "debug.log"))}
            assert {path for path in got if path.startswith(name)} == expected
    assert counts(mine)[0] > 0
    typed(capsys, "pull", here(store), "outputs=mine")
    assert counts(mine) == (4, 1)
    assert not list(mine.glob(".tmp-*"))


def test_a_run_in_use_is_neither_sent_nor_replaced(
    outputs: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(capsys, "push", here(store), "seed=1")
    run = next(path for path in outputs.glob("*/s0"))
    lock = RunLock(run).acquire()
    _, err = typed(capsys, "push", here(store), "seed=0")
    lock.release()
    assert f"{run.parent.name}/s0: skipped" in err
    assert counts(store) == (3, 0)
    target = tmp_path / "mine" / run.parent.name / "s1"
    target.parent.mkdir(parents=True)
    lock = RunLock(target).acquire()
    _, err = typed(capsys, "pull", here(store), "outputs=mine", code=1)
    lock.release()
    assert "in use by process" in err
    assert not target.exists()


def test_a_link_in_a_run_is_not_sent(outputs: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = next(outputs.glob("*/s0"))
    secret = outputs.parent / "secret"
    secret.write_text("SECRET")
    (run / "log.txt").unlink(missing_ok=True)
    (run / "log.txt").symlink_to(secret)
    _, err = typed(capsys, "push", here(store), code=1)
    assert "log.txt is not copied: it is a link to" in err
    assert not (store / run.parent.name / "s0").exists()
    assert b"SECRET" not in b"".join(files(store).values())


def test_an_edited_run_is_not_sent(outputs: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = next(outputs.glob("*/s0"))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("lr: ", "lr: 1"))
    _, err = typed(capsys, "push", here(store), "seed=0", code=1)
    assert "belongs to another folder" in err
    assert not (store / run.parent.name / "s0").exists()


def test_nothing_is_pulled_that_does_not_fit_on_the_disk(
    outputs: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(capsys, "push", here(store))
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr(pull_module.shutil, "disk_usage", lambda _: usage)
    _, err = typed(capsys, "pull", here(store), "outputs=mine", code=2)
    assert "mine has 0.0 MB free; nothing was copied" in err
    assert counts(tmp_path / "mine") == (0, 0)


def test_a_disk_that_fills_up_leaves_no_part(
    outputs: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(capsys, "push", here(store))

    def full(folder: Path, name: str, parts: Any, members: Any) -> None:
        if name == "summary.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / name))
        write_checked(folder, name, parts, members)

    monkeypatch.setattr(pull_module, "write_checked", full)
    _, err = typed(capsys, "pull", here(store), "outputs=mine", code=1)
    assert err.count("No space left on device") == 1
    assert "the same command goes on" in err
    assert not list((tmp_path / "mine").rglob("config.yaml"))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    typed(capsys, "pull", here(store), "outputs=mine")
    assert counts(tmp_path / "mine") == (4, 1)


def test_a_storage_that_breaks_is_one_message(
    outputs: Path, store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.local import LocalFileSystem

    plain = LocalFileSystem.makedirs
    calls = iter(range(1000))

    def broken(self: Any, path: str, exist_ok: bool = False) -> None:
        if next(calls) == 30:
            raise ConnectionResetError(errno.ECONNRESET, "reset by aws_secret_access_key=x")
        plain(self, path, exist_ok=exist_ok)

    monkeypatch.setattr(LocalFileSystem, "makedirs", broken)
    _, err = typed(capsys, "push", here(store), code=1)
    assert err.count("it broke off") == 1
    assert "it cannot be reached" in err
    monkeypatch.undo()
    typed(capsys, "push", here(store), f"outputs={outputs}")
    assert counts(store) == (4, 1)


def test_last_stays_the_own_run(outputs: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`last` is the run that was started last, not the one that was copied last."""
    typed(capsys, "push", here(store))
    typed(capsys, "pull", here(store), "outputs=mine")
    record = next((tmp_path / "mine").glob("*/s0/run.json"))
    assert record.stat().st_mtime < (tmp_path / "mine").stat().st_mtime - 86_400


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([], ["needs an address"]),
        (["vit"], ["'vit' is not an address"]),
        (["/mnt/share"], ["is not an address", "file:///folder"]),
        (["s3:/bucket/runs"], ["is not an address"]),
        (["simplecache::s3://bucket/runs"], ["is not an address"]),
        (["nosuch://bucket/runs"], ["nosuch"]),
        (["memory://"], ["names no bucket or folder"]),
        (["file:///"], ["names no bucket or folder"]),
        (["ftp://me:hunter2hunter2@127.0.0.1:1/x"], ["<redacted>@127.0.0.1:1/x", "cannot be"]),
    ],
)
@pytest.mark.parametrize("action", ["push", "pull"])
def test_a_bad_address_is_one_message(
    action: str, arguments: list[str], texts: list[str], outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = typed(capsys, action, *arguments, code=2)
    assert err.count("\n") == 1
    for text in texts:
        assert text in err
    assert "hunter2" not in err


def test_other_bad_input(outputs: Path, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = typed(capsys, "push", f"file://{outputs}/copies", code=2)
    assert "lie in one another" in err
    _, err = typed(capsys, "push", f"file://{outputs}", code=2)
    assert "lie in one another" in err
    _, err = typed(capsys, "pull", here(store), code=2)
    assert "holds no runs" in err
    _, err = typed(capsys, "push", here(store), "test/accuracy>2", code=2)
    assert "none of the 5 runs" in err
    typed(capsys, "push", here(store), "seed=0")
    _, err = typed(capsys, "pull", here(store), "seed=7", code=2)
    assert "none of its 2 runs" in err
    _, err = typed(capsys, "pull", here(store), "positian=rope", code=2)
    assert "positian: no run has it" in err
    assert "did you mean position?" in err


def test_the_extra_is_named_where_a_package_is_missing(
    outputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(address: str, **_: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    _, err = typed(capsys, "push", "s3://bucket/runs", code=2)
    assert "pip install 'blockyard[remote]'" in err
    _, err = typed(capsys, "push", "gs://bucket/runs", code=2)
    assert "Install s3fs" in err
