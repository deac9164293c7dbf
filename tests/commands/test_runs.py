"""`blockyard runs`: conditions, order, columns, and what is done to runs."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from blockyard.atomic_files import DELETED, passing_name, read_yaml, write_yaml
from blockyard.cli import main
from blockyard.runs.lock import RunLock
from tests.runs.run_folders import run_folder
from tests.sweep.sweep_runs import plan


@pytest.fixture
def ended() -> int:
    """The id of a process that is gone."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "outputs"
    run_folder(out, "vit-aaaaaaaaaa/s0", 0.7, position="rope")
    run_folder(out, "vit-aaaaaaaaaa/s1", 0.8, position="rope")
    run_folder(out, "gpt-bbbbbbbbbb/s0", 0.4, optimizer={"lr": 0.01}, block="post_norm")
    run_folder(out, "gpt-cccccccccc/s0", None, state="failed")
    return out


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """The runs that a command prints, in their order."""
    assert main(["runs", *arguments, "--csv"]) == 0
    return [row[0] for row in csv.reader(io.StringIO(capsys.readouterr().out))][1:]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["gpt-cccccccccc/s0", "gpt-bbbbbbbbbb/s0", "vit-aaaaaaaaaa/s1", "vit-aaaaaaaaaa/s0"]),
        (["position=rope"], ["vit-aaaaaaaaaa/s1", "vit-aaaaaaaaaa/s0"]),
        (["position!=rope"], ["gpt-cccccccccc/s0", "gpt-bbbbbbbbbb/s0"]),
        (["optimizer.lr<0.01"], ["gpt-cccccccccc/s0", "vit-aaaaaaaaaa/s1", "vit-aaaaaaaaaa/s0"]),
        (["optimizer.lr=1e-2"], ["gpt-bbbbbbbbbb/s0"]),
        (["test/accuracy>=0.7", "seed=1"], ["vit-aaaaaaaaaa/s1"]),
        (["state=failed"], ["gpt-cccccccccc/s0"]),
        (["test/accuracy=null"], ["gpt-cccccccccc/s0"]),
        (["vit"], ["vit-aaaaaaaaaa/s1", "vit-aaaaaaaaaa/s0"]),
        (["block=post_*"], ["gpt-bbbbbbbbbb/s0"]),
        (
            ["--best", "test/accuracy"],
            ["vit-aaaaaaaaaa/s1", "vit-aaaaaaaaaa/s0", "gpt-bbbbbbbbbb/s0", "gpt-cccccccccc/s0"],
        ),
        (["--best", "test/loss", "--limit", "1"], ["vit-aaaaaaaaaa/s1"]),
        (
            ["--sort", "test/accuracy"],
            ["gpt-bbbbbbbbbb/s0", "vit-aaaaaaaaaa/s0", "vit-aaaaaaaaaa/s1", "gpt-cccccccccc/s0"],
        ),
        (["--sort=-run"], ["vit-aaaaaaaaaa/s1", "vit-aaaaaaaaaa/s0", "gpt-cccccccccc/s0", "gpt-bbbbbbbbbb/s0"]),
    ],
)
def test_conditions_and_order(
    outputs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: list[str]
) -> None:
    assert listed(capsys, *arguments) == expected


def test_the_table_shows_what_tells_the_runs_apart(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "seed=0"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "started", "position", "block", "seed", "test/accuracy", "tags"]
    assert rows[1].split() == ["gpt-bbbbbbbbbb/s0", "done", "2026-11-22", "10:03", "none", "post_norm", "0", "0.4"]
    assert rows[-1] == "3 runs of 4 in outputs"


def test_json_has_everything(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "gpt-bbbbbbbbbb", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["config"]["optimizer"] == {"lr": 0.01}
    assert result["choices"]["block"] == "post_norm"
    assert result["metrics"] == {"test/accuracy": 0.4, "test/loss": 0.6}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimizer.lrr=1"], "optimizer.lrr: no run has it; did you mean optimizer.lr?"),
        (["optimizer.lr<big"], "optimizer.lr<big: < compares with a number, not 'big'"),
        (["--columns", "statee"], "statee: no run has it; did you mean state?"),
        (["--best", "optimizer.lr"], "--best optimizer.lr: no run says whether more of it is better"),
        (["--best", "test/loss", "--sort", "run"], "one of --sort and --best"),
        (["--limit", "-1"], "--limit"),
        (["--yes"], "--yes is for `blockyard runs archive` and"),
        (["tag"], "runs tag needs a run"),
        (["tag", "gpt-bbbbbbbbbb/s0"], "runs tag gpt-bbbbbbbbbb/s0 needs a tag"),
        (["tag", "gpt-bbbbbbbbbb/s0", "two words"], "tag 'two words': expected up to 40 letters"),
        (["delete", "vit-aaaaaaaaaa"], "matches 2 runs; choose one"),
    ],
)
def test_wrong_words_are_refused(
    outputs: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["runs", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert len(list(outputs.glob("*/s*"))) == 4


def test_tags_and_notes_stay_with_a_run(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "tag", "vit-aaaaaaaaaa/s1", "good", "baseline"]) == 0
    assert main(["runs", "untag", "vit-aaaaaaaaaa/s1", "good"]) == 0
    assert main(["runs", "note", "vit-aaaaaaaaaa/s1", "the", "one", "to", "beat"]) == 0
    assert "tags baseline" in capsys.readouterr().out
    assert listed(capsys, "tags=baseline") == ["vit-aaaaaaaaaa/s1"]
    assert listed(capsys, "note=*beat") == ["vit-aaaaaaaaaa/s1"]
    assert listed(capsys, "tags=good") == []


def test_an_archived_run_is_left_out_and_comes_back(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "archive", "vit-aaaaaaaaaa/s0", "vit-aaaaaaaaaa/s1"]) == 0
    assert capsys.readouterr().out == "vit-aaaaaaaaaa/s0: archived\nvit-aaaaaaaaaa/s1: archived\n"
    assert listed(capsys) == ["gpt-cccccccccc/s0", "gpt-bbbbbbbbbb/s0"]
    assert len(listed(capsys, "--archived")) == 4
    assert main(["runs", "unarchive", "vit-aaaaaaaaaa/s0"]) == 0
    capsys.readouterr()
    assert listed(capsys, "position=rope") == ["vit-aaaaaaaaaa/s0"]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The outputs of three runs of two arms, with the lock files of their training."""
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "outputs"
    for name, dim in (("vit/s0", 32), ("vit/s1", 32), ("gpt/s0", 16)):
        RunLock(run_folder(out, name, model={"dim": dim})).acquire().release()
    return out


def test_a_deleted_run_is_gone(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The arm's folder goes with its last run, and the command names the folder and the number of its files."""
    (folder,) = trained.glob("gpt-*/s0")
    assert main(["runs", "delete", "gpt", "--yes"]) == 0
    assert capsys.readouterr().out == f"deleting {folder} (4 files, 0.0 MB)\n1 run deleted\n"
    assert not list(trained.glob("gpt*"))
    assert main(["runs", "delete", str(next(trained.glob("vit-*/s0"))), "--yes"]) == 0
    assert [path.name for path in trained.glob("*/s*")] == ["s1"]


def test_what_a_killed_deletion_left_is_named_and_then_removed(
    trained: Path, ended: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = trained.glob("gpt-*/s0")
    with monkeypatch.context() as killed:
        killed.setattr("os.getpid", lambda: ended)
        left = folder.rename(folder.with_name(passing_name(DELETED, "s0")))
    assert main(["runs"]) == 0
    assert f"{left.relative_to(trained.parent)} is left of a run that was being deleted" in capsys.readouterr().err
    living = folder.with_name(passing_name(DELETED, "s1"))  # of a process that is at it
    living.mkdir()
    assert main(["runs", "delete", "no-such-run", "--yes"]) == 2
    assert list(folder.parent.iterdir()) == [living]


def test_the_folder_of_an_arm_stays_where_it_holds_something_else(trained: Path) -> None:
    (folder,) = trained.glob("gpt-*")
    (folder / "thoughts.txt").write_text("mine")
    assert main(["runs", "delete", "gpt", "--yes"]) == 0
    assert [path.name for path in folder.iterdir()] == ["thoughts.txt"]


def _project(root: Path, run: Path) -> Path:
    folder = root / "proj"
    folder.mkdir()
    (folder / "config.yaml").write_text("a: 1")
    return folder


def _copied(root: Path, run: Path) -> Path:
    return Path(shutil.copytree(run, root / "copy"))


def _other_hash(root: Path, run: Path) -> Path:
    return Path(shutil.copytree(run, root / "vit-0123456789" / "s0"))


def _other_seed(root: Path, run: Path) -> Path:
    return run.rename(run.with_name("s7"))


def _without_status(root: Path, run: Path) -> Path:
    (run / "status.json").unlink()
    return run


def _edited(root: Path, run: Path) -> Path:
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("32", "48"))
    return run


def _linked(root: Path, run: Path) -> Path:
    link = root / run.parent.name / "s0"
    link.parent.mkdir()
    link.symlink_to(run)
    return link


def _linked_arm(root: Path, run: Path) -> Path:
    (root / run.parent.name).symlink_to(run.parent)
    return root / run.parent.name / "s0"


NO_RUNS = (_project, _copied, _other_hash, _other_seed, _without_status, _edited, _linked, _linked_arm)


@pytest.mark.parametrize("change", NO_RUNS)
def test_nothing_but_a_run_is_deleted(
    trained: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path, Path], Path]
) -> None:
    """A folder that is not NAME-HASH/sSEED of its own config and seed is refused by name, with all its files left."""
    folder = change(trained.parent, next(trained.glob("vit-*/s0")))
    (folder / "thesis.tex").write_text("years of work")
    before = sorted(trained.parent.rglob("*"))
    assert main(["runs", "delete", str(folder), "--yes"]) == 2
    assert str(folder) in capsys.readouterr().err
    assert sorted(trained.parent.rglob("*")) == before


@pytest.mark.parametrize("change", [each for each in NO_RUNS if each is not _edited])
@pytest.mark.parametrize("action", ["tag", "note", "archive", "unarchive"])
def test_nothing_but_a_run_gets_a_note(trained: Path, action: str, change: Callable[[Path, Path], Path]) -> None:
    """Notes, tags and the archive write into runs only."""
    folder = change(trained.parent, next(trained.glob("vit-*/s0")))
    assert main(["runs", action, str(folder), *(["text"] if action in ("tag", "note") else [])]) == 2
    assert not (folder / "notes.json").exists()


def test_one_folder_that_is_no_run_keeps_all_of_them(trained: Path) -> None:
    folder = _project(trained.parent, trained)
    assert main(["runs", "delete", "gpt", str(folder), "--yes"]) == 2
    assert len(list(trained.glob("*/s*"))) == 3


def test_links_in_a_run_are_not_followed(trained: Path, tmp_path: Path) -> None:
    (run,) = trained.glob("gpt-*/s0")
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "last.ckpt").write_text("weights")
    (run / "checkpoints").symlink_to(tmp_path / "big")
    assert main(["runs", "delete", "gpt", "--yes"]) == 0
    assert (tmp_path / "big" / "last.ckpt").read_text() == "weights"


def test_lists_are_compared_letter_by_letter(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bracket began a class of characters, so that [0,1] was found in any list with a text 0 or 1."""
    (path,) = outputs.glob("gpt-b*/s0")
    config = read_yaml(path / "config.yaml")
    write_yaml(path / "config.yaml", {**config, "tags": ["0", "[x]"], "model": {**config["model"], "order": [0, 1]}})
    assert listed(capsys, "model.order=[0,1]") == ["gpt-bbbbbbbbbb/s0"]
    assert listed(capsys, "model.order=[0,2]") == []
    assert listed(capsys, "model.order=1") == ["gpt-bbbbbbbbbb/s0"]


def test_deletion_names_the_sweeps_that_would_train_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_plan = plan(tmp_path, arms={"pre": ["block=pre_norm"]}, seeds=(0,))
    sweep_plan.save()
    (cell,) = sweep_plan.cells
    path = sweep_plan.path(cell)
    run_folder(tmp_path, str(path.relative_to(tmp_path)))
    write_yaml(path / "config.yaml", sweep_plan.config(cell))
    assert main(["runs", "delete", "last", f"outputs={tmp_path}"]) == 2
    assert "; cells of sweep tiny, which would be trained again?" in capsys.readouterr().err
    for arguments in (["delete", str(path)], ["rename", str(path), "other"]):  # with other outputs, by its path
        assert main(["runs", *arguments, f"outputs={tmp_path / 'others'}"]) == 2
        assert "sweep tiny" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "left"), [("y", 1), ("n", 2), ("", 2)])
def test_deletion_asks_first(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    prompts: list[str] = []
    (run,) = trained.glob("vit-*/s1")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda text: prompts.append(text) or answer)
    assert main(["runs", "delete", "vit/s1"]) == 0
    assert prompts[0].startswith(f"delete 1 run (4 files, 0.0 MB): {run.parent.name}/s1? [y/N]")
    assert len(list(trained.glob("vit-*/s*"))) == left


def test_a_run_in_use_is_not_deleted(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = trained.glob("vit-*/s1")
    lock = RunLock(run).acquire()
    try:
        assert main(["runs", "delete", "vit/s0", "vit/s1", "--yes"]) == 2
    finally:
        lock.release()
    assert "/s1: a process is running it; nothing was deleted" in capsys.readouterr().err
    assert len(list(trained.glob("vit-*/s*"))) == 2


@pytest.mark.parametrize("argument", ["list", "rm", "show", "lst"])
def test_a_word_that_is_no_action_and_in_no_name_is_refused(
    outputs: Path, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    """`runs list` is not a search without a result: what can be done is named."""
    assert main(["runs", argument]) == 2
    assert "actions: tag, untag, note, rename, archive" in capsys.readouterr().err


def test_a_run_gets_another_name(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folder and config have the new name, the hash stays, and the run is found, listed and deleted under it."""
    (old,) = trained.glob("gpt-*")
    digits = old.name.rpartition("-")[2]
    assert main(["runs", "rename", "gpt", "small"]) == 0
    assert capsys.readouterr().out == f"gpt-{digits}/s0 is now small-{digits}/s0\n"
    assert read_yaml(trained / f"small-{digits}" / "s0" / "config.yaml")["name"] == "small"
    assert not old.exists()
    assert listed(capsys, "small") == [f"small-{digits}/s0"]
    assert main(["runs", "rename", "vit/s1", "small"]) == 0
    assert [path.name for path in trained.glob("vit-*/s*")] == ["s0"]
    assert main(["runs", "delete", f"small-{digits}/s0", "--yes"]) == 0


def test_a_run_in_use_keeps_its_name_and_leaves_no_folder(trained: Path) -> None:
    (run,) = trained.glob("gpt-*/s0")
    before = sorted(trained.glob("*"))
    lock = RunLock(run).acquire()
    try:
        assert main(["runs", "rename", "gpt", "small"]) == 2
    finally:
        lock.release()
    assert sorted(trained.glob("*")) == before


@pytest.mark.parametrize("name", ["", "...", "a\nb", "hf_" + "a" * 30])
def test_what_cannot_be_a_name_is_refused(trained: Path, name: str) -> None:
    before = sorted(trained.rglob("*"))
    assert main(["runs", "rename", "gpt", name]) == 2
    assert sorted(trained.rglob("*")) == before


def test_a_name_that_is_taken_is_refused(trained: Path) -> None:
    (run,) = trained.glob("gpt-*/s0")
    taken = trained / f"other-{run.parent.name.rpartition('-')[2]}" / "s0"
    taken.mkdir(parents=True)
    assert main(["runs", "rename", "gpt", "other"]) == 2
    assert run.is_dir()


def test_cells_of_a_sweep_keep_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sweep finds its cells by their names, so another one is refused with what can be done instead."""
    sweep_plan = plan(tmp_path, arms={"pre": ["block=pre_norm"]}, seeds=(0,))
    sweep_plan.save()
    (cell,) = sweep_plan.cells
    run_folder(tmp_path, cell.run)
    write_yaml(sweep_plan.path(cell) / "config.yaml", sweep_plan.config(cell))
    assert main(["runs", "rename", "last", "other", f"outputs={tmp_path}"]) == 2
    assert "is a cell of sweep tiny" in capsys.readouterr().err


def test_formulas_are_not_computed_in_csv(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A note of a stranger's run is a text for a spreadsheet; numbers stay numbers."""
    for run in trained.glob("*/s*"):
        (run / "notes.json").write_text('{"note": "=HYPERLINK(1)"}')
    assert main(["runs", "--csv", "--columns", "note,optimizer.lr"]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert {tuple(row[1:]) for row in rows[1:]} == {("'=HYPERLINK(1)", "0.001")}


def test_a_damaged_note_is_named(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (outputs / "gpt-bbbbbbbbbb" / "s0" / "notes.json").write_text('{"tags": "good"}')
    assert main(["runs"]) == 0
    assert "notes.json is damaged: expected tags, note and archived" in capsys.readouterr().err
    assert main(["runs", "tag", "gpt-bbbbbbbbbb/s0", "good"]) == 2


def test_runs_of_a_sweep_are_found_by_its_name_and_have_columns_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`sweep=NAME` was refused (no run has it), and two arms that differ in one option looked the same."""
    from tests.report.report_runs import run, sweep

    monkeypatch.chdir(tmp_path)
    arms = {"plain": ["token_mixer.qk_norm=false"], "qk": ["token_mixer.qk_norm=true"]}
    sweep(tmp_path / "outputs", arms, {"plain": {0: 0.9}, "qk": {0: 0.8}}, name="norms")
    run(tmp_path / "outputs", "position=none", figure=0.5)
    assert len(listed(capsys, "sweep=norms")) == 2
    assert len(listed(capsys, "sweep!=norms")) == 1
    assert len(listed(capsys, "arm=qk")) == 1
    assert main(["runs", "sweep=norms", "--best", "test/accuracy"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    columns = head.split()
    assert {"sweep", "arm", "token_mixer.qk_norm"} <= set(columns)
    assert [row.split()[columns.index("arm")] for row in rows[:2]] == ["plain", "qk"]
    assert main(["runs", "sweep=nosuch"]) == 0
    assert "0 runs of 3" in capsys.readouterr().out
    assert main(["runs", "arm=qk", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["sweep"] == ["norms"]
    (tmp_path / "outputs" / "sweeps" / "norms" / "plan.json").write_text("{")
    assert main(["runs"]) == 0
    assert "plan.json is damaged" in caplog.text
