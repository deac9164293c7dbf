"""`blockyard train` as it is typed: start, start again, force, resume, Hydra's words."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from blockyard.cli import main
from tests.support.every import every
from tests.support.fork import blockyard, forked
from tests.support.tiny import DEBUG

pytestmark = pytest.mark.xdist_group("train_verb")  # most tests share one run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder in which one quick run is done, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    command = [sys.executable, "-m", "blockyard", "train", *DEBUG]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def run_folders(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("outputs/*/s*/status.json"))


def test_it_says_how_it_went_and_where_it_lies(trained):
    folder, done = trained
    (run,) = run_folders(folder)
    assert "test/accuracy" in done.stdout
    assert str(run) in done.stdout
    assert json.loads((run / "status.json").read_text())["state"] == "done"


def test_a_run_folder_holds_what_is_promised(trained):
    folder, _ = trained
    (run,) = run_folders(folder)
    names = {path.name for path in run.iterdir()}
    assert {"config.yaml", "run.json", "status.json", "metrics.csv", "summary.json", "checkpoints"} <= names
    assert not any("=" in path.name for path in run.rglob("*"))
    summary = json.loads((run / "summary.json").read_text())
    for key in ("parameters", "flops_per_sample", "step_seconds", "samples_per_second", "peak_memory", "kernels"):
        assert summary[key], key
    assert every(layer["kernel"] == "flash" for layer in summary["kernels"])


def test_a_finished_run_is_not_trained_again(trained):
    folder, _ = trained
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.*") if path.suffix != ".lock"}
    again = blockyard(folder, "train", *DEBUG)
    assert again.returncode == 0
    assert "force=true" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.*") if path.suffix != ".lock"} == before


def test_force_keeps_the_old_folder(trained):
    folder, _ = trained
    assert blockyard(folder, "train", *DEBUG, "seed=5").returncode == 0
    assert blockyard(folder, "train", *DEBUG, "seed=5", "force=true").returncode == 0
    summaries = list(folder.glob("outputs/*/*s5*/summary.json"))
    assert len(summaries) == 2


def test_a_resumed_run_takes_no_other_config(trained):
    folder, _ = trained
    refused = blockyard(folder, "train", "resume=last", "optimizer.lr=0.5")
    assert refused.returncode == 2
    assert "optimizer.lr" in refused.stderr
    assert "0.5" in refused.stderr


def test_resuming_a_finished_run_is_news(trained):
    folder, _ = trained
    again = blockyard(folder, "train", f"resume={run_folders(folder)[0]}")
    assert again.returncode == 0, again.stderr
    assert "is already done" in again.stdout


def test_a_cell_is_not_started_by_hand(trained):
    folder, _ = trained
    alone = blockyard(folder, "_cell", str(run_folders(folder)[0]))
    assert alone.returncode == 2
    assert "not by hand" in alone.stderr


def test_eval_gives_the_run_s_own_figures(trained):
    folder, _ = trained
    run = run_folders(folder)[0]
    done = blockyard(folder, "eval", f"run={run}")
    assert done.returncode == 0, done.stderr
    wanted = json.loads((run / "summary.json").read_text())["metrics"]["test/accuracy"]
    assert re.search(rf"^test/accuracy +{re.escape(f'{wanted:.6g}')}$", done.stdout, re.MULTILINE)


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [("eval", "run=last"), ("inspect", "run=last", "mixing"), ("compare", "outputs"), ("train", "resume=last")],
    ids=lambda arguments: arguments[0],
)
def test_a_verb_imports_what_it_needs(trained, arguments):
    """In a Python of its own: a fork has everything already."""
    command = [sys.executable, "-m", "blockyard", *arguments]
    done = subprocess.run(command, cwd=trained[0], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


def test_cfg_job_prints_and_stops(tmp_path):
    done = blockyard(tmp_path, "train", "experiment=gpt_code", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert "_target_: blockyard.model.decoder.Decoder" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_does_not_end_a_run(tmp_path):
    def work() -> int:
        """Run the command with stdout and stderr connected to a closed pipe."""
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(reader)
        os.chdir(tmp_path)
        return main(["train", "debug=fast", "logger=none"])

    assert forked(work) == 0
    (run,) = run_folders(tmp_path)
    assert json.loads((run / "status.json").read_text())["state"] == "done"
