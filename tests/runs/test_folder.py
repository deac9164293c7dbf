"""A run folder says how its run stands, and is started again only where that is meant."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
from pathlib import Path

import pytest

from blockyard import atomic_files
from blockyard.atomic_files import TEMPORARY, new_folder, passing_name, write_text
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.not_started import AlreadyDoneError
from blockyard.runs.provenance import git_state
from blockyard.runs.rank import check_environment
from blockyard.runs.start import create_run
from blockyard.sweep.cell.states import final_metrics
from tests.runs.run_folders import run_config


def test_seeds_have_folders_of_their_own(tmp_path: Path) -> None:
    run_folders = [create_run(run_config(tmp_path) | {"seed": seed}) for seed in range(3)]
    assert len({run.path for run in run_folders}) == 3
    assert len({run.path.parent for run in run_folders}) == 1
    for run in run_folders:
        run.release()


def test_the_same_command_after_the_end_does_nothing_unless_forced(tmp_path: Path) -> None:
    with create_run(run_config(tmp_path)) as run:
        run.metrics.append(1, {"a": 1})
        run.write_json("summary.json", {"a": 1})
        run.set_status("done", exit_code=0)
    with pytest.raises(AlreadyDoneError, match="force=true") as caught:
        create_run(run_config(tmp_path))
    assert caught.value.folder.finished
    with create_run(run_config(tmp_path, force=True)) as anew:
        assert not anew.resumes
        assert anew.path == run.path
        assert anew.status.state == "queued"
        assert anew.metrics.rows() == []
        assert "force" not in atomic_files.read_yaml(anew.path / "config.yaml")
    kept = next(path for path in anew.path.parent.iterdir() if path.name.startswith(".replaced-s0-"))
    assert RunFolder.open(kept).finished
    assert (kept / "metrics.csv").is_file()


def test_a_failed_run_is_not_started_again_by_accident(tmp_path: Path) -> None:
    with create_run(run_config(tmp_path)) as run:
        run.set_status("failed", "loss is NaN at step 7", step=7, exit_code=1)
    with pytest.raises(UserError, match=r"loss is NaN at step 7.*resume=.*force=true"):
        create_run(run_config(tmp_path))


def test_what_is_incidental_may_change_and_is_frozen_anew(tmp_path: Path) -> None:
    with create_run(run_config(tmp_path)) as run:
        run.set_status("interrupted", "Ctrl-C", step=1)
    with create_run(run_config(tmp_path, tags=["late"])) as again:
        assert again.path == run.path
        assert RunFolder.open(run.path).config["tags"] == ["late"]
        entry = again.facts()["resumes"][0]
        assert entry["before"] == {"tags": None}
        assert "Ctrl-C" in entry["was"]


def test_a_folder_that_lost_its_config_does_not_lend_its_checkpoints(tmp_path: Path) -> None:
    with create_run(run_config(tmp_path)) as run:
        (run.checkpoints / "last.ckpt").write_bytes(b"old")
        (run.path / "config.yaml").unlink()
    with create_run(run_config(tmp_path)) as anew:
        assert not list(anew.checkpoints.iterdir())
        assert "the old run is kept as" in str(anew.message)


def test_leftovers_of_killed_writers_are_swept_at_the_start(tmp_path: Path) -> None:
    with create_run(run_config(tmp_path)) as run:
        run.set_status("interrupted", "x")
    for folder in (run.path, run.checkpoints):
        (folder / ".tmp-last.ckpt-1-abc").write_bytes(b"torn")
    with create_run(run_config(tmp_path)) as again:
        assert not list(again.path.rglob(".tmp-*"))
        assert len(again.facts()["resumes"][0]["swept"]) == 2


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    atomic_files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        atomic_files.write_json(path, {"a": object()})
    with pytest.raises(FileNotFoundError), atomic_files.replacing(path) as temporary:
        temporary.with_name("absent").rename(temporary)
    assert atomic_files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"state": "odd"}', b"\xff\xfe"])
def test_a_damaged_status_is_an_interrupted_run(tmp_path: Path, damage: bytes) -> None:
    with create_run(run_config(tmp_path)) as run:
        (run.path / "status.json").write_bytes(damage)
        assert run.status.state == "interrupted"
        assert "damaged" in str(run.status.reason)
        run.set_status("running")
        assert run.status.state == "running"


@pytest.mark.parametrize("damage", ["", "- a list", "a: &x [1]\nb: *x", "a: !!python/object/apply:os.system [id]", "{"])
def test_a_damaged_or_hostile_config_is_refused(tmp_path: Path, damage: str) -> None:
    with create_run(run_config(tmp_path)) as run:
        (run.path / "config.yaml").write_text(damage)
    with pytest.raises(UserError, match="cannot be read"):
        RunFolder.open(run.path)


def test_the_config_reads_back_as_it_was(tmp_path: Path) -> None:
    odd = {
        "f": 1e-05,
        "i": 3,
        "s": "1e-3",
        "n": None,
        "t": True,
        "l": [1, "a"],
        "u": "é\n'\"",
        "e": {},
        "inf": float("inf"),
    }
    same = [0.1]
    with create_run(run_config(tmp_path, data={**odd, "x": same, "y": same})) as run:
        assert RunFolder.open(run.path).config["data"] == {**odd, "x": same, "y": same}


def test_a_place_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="choose outputs="):
        create_run(run_config(tmp_path / "file"))
    with pytest.raises(UserError, match="not a run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(UserError, match="seed="):
        create_run(run_config(tmp_path) | {"seed": "x"})


def test_another_rank_waits_for_the_main_ones_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create_run(run_config(tmp_path)) as run:
        run.set_status("running")
        monkeypatch.setenv("RANK", "1")
        assert create_run(run_config(tmp_path)).path == run.path


def test_where_it_comes_from_is_recorded_outside_a_repository_too(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    with create_run(run_config(tmp_path), command=["blockyard", "train"], choices={"data": "digits"}) as run:
        facts = json.loads((run.path / "run.json").read_text())
    assert facts["command"] == ["blockyard", "train"]
    assert facts["choices"] == {"data": "digits"}
    assert facts["versions"]["python"].startswith("3.")
    assert facts["host"]["cores"] >= 1
    assert facts["identity"] in run.path.parent.name


def test_restarts_on_several_nodes_need_a_store_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "3"}.items():
        monkeypatch.setenv(name, value)
    check_environment()
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(UserError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        check_environment()
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    check_environment()


@pytest.mark.parametrize("name", ["LOCAL_RANK", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"])
@pytest.mark.parametrize("text", ["x", "", "-1", "²"])
def test_a_rank_that_is_not_a_number_is_named(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(UserError, match=f"the environment has {name}={text}, which is not a number"):
        create_run(run_config(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    """NaN is no JSON (RFC 8259): other programs could not read it. Readers here take null in metrics for NaN."""

    def refused(name: str) -> None:
        raise AssertionError(f"{name} in a JSON file")

    with create_run(run_config(tmp_path)) as folder:
        folder.write_summary({"metrics": {"test/f1": math.nan, "test/loss": 1.5}, "seconds": (math.inf, 2)})
    text = (folder.path / "summary.json").read_text()
    content = json.loads(text, parse_constant=refused)
    assert content["metrics"] == {"test/f1": None, "test/loss": 1.5}
    assert content["seconds"] == [None, 2]
    assert math.isnan(folder.summary()["metrics"]["test/f1"])
    assert math.isnan(final_metrics(folder.path)["test/f1"])
    assert final_metrics(folder.path)["test/loss"] == 1.5


@pytest.mark.parametrize("name", [".s0.lock", "s0/metrics.csv"])
def test_a_link_in_place_of_a_file_of_the_run_leads_nowhere(tmp_path: Path, name: str) -> None:
    """A stranger's run folder may hold links: taking it over changes no file outside of it."""
    with create_run(run_config(tmp_path)) as run:
        run.set_status("interrupted", "x")
    victim = tmp_path / "thesis.tex"
    victim.write_text("step,train/loss\n1,2\n3,4")
    link = run.path.parent / name
    link.unlink(missing_ok=True)
    link.symlink_to(victim)
    with contextlib.suppress(UserError), create_run(run_config(tmp_path)) as again:
        again.metrics.append(1, {"train/loss": 1.0})
    assert victim.read_text() == "step,train/loss\n1,2\n3,4"


@pytest.mark.parametrize("as_folder", [False, True])
def test_the_next_writer_removes_what_a_killed_one_left(
    as_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's own folder too, where no run's lock is held; never what another process may be writing."""
    process = subprocess.Popen(["true"])
    process.wait()
    names = [passing_name(TEMPORARY, "living")]  # of this process
    with monkeypatch.context() as killed:
        killed.setattr("os.getpid", lambda: process.pid)
        left = passing_name(TEMPORARY, "out.csv"), passing_name(TEMPORARY, "exported")
        killed.setattr("blockyard.atomic_files.replace._host", lambda: "00000000")
        names.append(passing_name(TEMPORARY, "of another machine"))
    for name in (*names, left[0], f"{TEMPORARY}mine.txt", "mine-1-2"):
        (tmp_path / name).write_text("x")
    (tmp_path / left[1]).mkdir()
    (tmp_path / left[1] / "model.safetensors").write_text("x")
    if as_folder:
        with new_folder(tmp_path / "new"):
            pass
    else:
        write_text(tmp_path / "new", "x")
    assert {path.name for path in tmp_path.iterdir()} == {*names, f"{TEMPORARY}mine.txt", "mine-1-2", "new"}
