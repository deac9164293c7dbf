"""`blockyard runs`: conditions, order, columns, and what is done to runs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from blockyard.cli import main
from blockyard.runs.lock import RunLock
from tests.runs.run_folders import run_folder
from tests.sweep.sweep_runs import plan


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "outputs"
    run_folder(out, "vit-aaaa/s0", 0.7, position="rope")
    run_folder(out, "vit-aaaa/s1", 0.8, position="rope")
    run_folder(out, "gpt-bbbb/s0", 0.4, optimizer={"lr": 0.01}, block="post_norm")
    run_folder(out, "gpt-cccc/s0", None, state="failed")
    return out


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """The runs that a command prints, in their order."""
    assert main(["runs", *words, "--csv"]) == 0
    return [row[0] for row in csv.reader(io.StringIO(capsys.readouterr().out))][1:]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["gpt-cccc/s0", "gpt-bbbb/s0", "vit-aaaa/s1", "vit-aaaa/s0"]),
        (["position=rope"], ["vit-aaaa/s1", "vit-aaaa/s0"]),
        (["position!=rope"], ["gpt-cccc/s0", "gpt-bbbb/s0"]),
        (["optimizer.lr<0.01"], ["gpt-cccc/s0", "vit-aaaa/s1", "vit-aaaa/s0"]),
        (["optimizer.lr=1e-2"], ["gpt-bbbb/s0"]),
        (["test/accuracy>=0.7", "seed=1"], ["vit-aaaa/s1"]),
        (["state=failed"], ["gpt-cccc/s0"]),
        (["test/accuracy=null"], ["gpt-cccc/s0"]),
        (["vit"], ["vit-aaaa/s1", "vit-aaaa/s0"]),
        (["block=post_*"], ["gpt-bbbb/s0"]),
        (["--best", "test/accuracy"], ["vit-aaaa/s1", "vit-aaaa/s0", "gpt-bbbb/s0", "gpt-cccc/s0"]),
        (["--best", "test/loss", "--limit", "1"], ["vit-aaaa/s1"]),
        (["--sort", "test/accuracy"], ["gpt-bbbb/s0", "vit-aaaa/s0", "vit-aaaa/s1", "gpt-cccc/s0"]),
        (["--sort=-run"], ["vit-aaaa/s1", "vit-aaaa/s0", "gpt-cccc/s0", "gpt-bbbb/s0"]),
    ],
)
def test_conditions_and_order(
    outputs: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: list[str]
) -> None:
    assert listed(capsys, *words) == expected


def test_the_table_shows_what_tells_the_runs_apart(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "seed=0"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "started", "position", "block", "seed", "test/accuracy", "tags"]
    assert rows[1].split() == ["gpt-bbbb/s0", "done", "2026-11-22", "10:03", "none", "post_norm", "0", "0.4"]
    assert rows[-1] == "3 runs of 4 in outputs"


def test_json_has_everything(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "gpt-bbbb", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["config"]["optimizer"] == {"lr": 0.01}
    assert found["choices"]["block"] == "post_norm"
    assert found["metrics"] == {"test/accuracy": 0.4, "test/loss": 0.6}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.lrr=1"], "optimizer.lrr: no run has it; did you mean optimizer.lr?"),
        (["optimizer.lr<big"], "optimizer.lr<big: < compares with a number, not 'big'"),
        (["--columns", "statee"], "statee: no run has it; did you mean state?"),
        (["--best", "optimizer.lr"], "--best optimizer.lr: no run says whether more of it is better"),
        (["--best", "test/loss", "--sort", "run"], "one of --sort and --best"),
        (["--limit", "-1"], "--limit"),
        (["--yes"], "--yes is for `blockyard runs delete RUN...`"),
        (["tag"], "runs tag needs a run"),
        (["tag", "gpt-bbbb/s0"], "runs tag gpt-bbbb/s0 needs a tag"),
        (["tag", "gpt-bbbb/s0", "two words"], "tag 'two words': expected up to 40 letters"),
        (["delete", "vit-aaaa"], "matches 2 runs; choose one"),
        (["delete", "gpt-bbbb/s0"], "--yes confirms; nothing was deleted"),
    ],
)
def test_wrong_words_are_refused(
    outputs: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["runs", *words]) == 2
    assert message in capsys.readouterr().err
    assert len(list(outputs.glob("*/s*"))) == 4


def test_tags_and_notes_stay_with_a_run(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "tag", "vit-aaaa/s1", "good", "baseline"]) == 0
    assert main(["runs", "untag", "vit-aaaa/s1", "good"]) == 0
    assert main(["runs", "note", "vit-aaaa/s1", "the", "one", "to", "beat"]) == 0
    assert "tags baseline" in capsys.readouterr().out
    assert listed(capsys, "tags=baseline") == ["vit-aaaa/s1"]
    assert listed(capsys, "note=*beat") == ["vit-aaaa/s1"]
    assert listed(capsys, "tags=good") == []


def test_an_archived_run_is_left_out_and_comes_back(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "archive", "vit-aaaa/s0", "vit-aaaa/s1"]) == 0
    assert capsys.readouterr().out == "vit-aaaa/s0: archived\nvit-aaaa/s1: archived\n"
    assert listed(capsys) == ["gpt-cccc/s0", "gpt-bbbb/s0"]
    assert len(listed(capsys, "--archived")) == 4
    assert main(["runs", "unarchive", "vit-aaaa/s0"]) == 0
    capsys.readouterr()
    assert listed(capsys, "position=rope") == ["vit-aaaa/s0"]


def test_a_deleted_run_is_gone(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "delete", "gpt-bbbb/s0", "gpt-cccc/s0", "--yes"]) == 0
    assert capsys.readouterr().out == "2 runs deleted\n"
    assert not list(outputs.glob("gpt*"))
    assert listed(capsys) == ["vit-aaaa/s1", "vit-aaaa/s0"]


def test_deletion_names_the_sweeps_that_would_train_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = plan(tmp_path, arms={"pre": ["block=pre_norm"]}, seeds=(0,))
    made.save()
    (cell,) = made.cells
    run_folder(tmp_path, str(made.path(cell).relative_to(tmp_path)))
    assert main(["runs", "delete", "last", f"outputs={tmp_path}"]) == 2
    assert "; cells of sweep tiny, which would be trained again?" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("n", 2), ("", 2)])
def test_deletion_asks_first(
    outputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or answer)
    assert main(["runs", "delete", "vit-aaaa/s1"]) == 0
    assert asked[0].startswith("delete 1 run (0.0 MB): vit-aaaa/s1? [y/N]")
    assert len(list(outputs.glob("vit-aaaa/s*"))) == left


def test_a_run_in_use_is_not_deleted(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RunLock(outputs / "vit-aaaa" / "s1").acquire()
    try:
        assert main(["runs", "delete", "vit-aaaa/s0", "vit-aaaa/s1", "--yes"]) == 2
    finally:
        lock.release()
    assert "vit-aaaa/s1: a process is running it; nothing was deleted" in capsys.readouterr().err
    assert len(list(outputs.glob("vit-aaaa/s*"))) == 2


def test_a_damaged_note_is_named(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (outputs / "gpt-bbbb" / "s0" / "notes.json").write_text('{"tags": "good"}')
    assert main(["runs"]) == 0
    assert "notes.json is damaged: expected tags, note and archived" in capsys.readouterr().err
    assert main(["runs", "tag", "gpt-bbbb/s0", "good"]) == 2
