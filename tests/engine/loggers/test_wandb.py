"""The W&B logger: modes, what a run's record holds, and a service or helper that fails."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from blockyard.engine.loggers import RunLog
from blockyard.engine.loggers.wandb import Wandb
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from tests.engine.loggers.logged_runs import BOUND, STEPS, log_run, run_folder
from tests.support.paths import ROOT

SECRET = "hunter2hunter2"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not logged in, nothing asked for."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


def _records(folder: RunFolder) -> list[dict[str, Any]]:
    """What lies in the newest W&B file, read by W&B's own program."""
    path = max(folder.path.glob("wandb/*run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    completed = subprocess.run(
        [shutil.which("wandb") or str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(path)],
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in completed.stdout.splitlines() if line.startswith("{")]


@pytest.mark.usefixtures("nobody")
def test_wandb_chooses_its_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.example")
    assert Wandb().mode == "offline"
    with pytest.raises(UserError, match="wandb login"):
        Wandb(mode="online").ready()
    (tmp_path / "netrc").write_text("machine wandb.example login user password xyz\n")
    assert Wandb().mode == "online"
    Wandb(mode="online").ready()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert Wandb().mode == "offline"
    assert Wandb(mode="online").mode == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert Wandb().mode == "disabled"
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert Wandb().mode == "online"


@pytest.mark.usefixtures("nobody")
def test_wandb_offline_holds_the_whole_run_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train", f"--password={SECRET}"])
    folder = run_folder(tmp_path, data={"password": SECRET, "deep": {"er": [1, {"x": None}]}})
    assert log_run(folder, Wandb(tags=["t2"], job_type="arm")) < BOUND
    run_id = folder.facts()["wandb"]["id"]
    records = _records(folder)
    run = next(record["run"] for record in records if record["type"] == "run")
    assert run["run_id"] == run_id
    assert run["config"]["update"]["data"]["deep"] == {"er": [1, {"x": None}]}
    assert (run["display_name"], run["run_group"], run["job_type"]) == ("run/s0", folder.path.parent.name, "arm")
    assert set(run["tags"]) == {"t1", "t2"}
    assert len([record for record in records if record["type"] == "history"]) == len(STEPS)
    for path in (path for path in folder.path.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
    # A second start of the same run goes on under the same id.
    again = RunFolder.open(folder.path)
    Wandb().prepare(again)
    assert again.facts()["wandb"]["id"] == run_id


@pytest.mark.full
@pytest.mark.usefixtures("nobody")
def test_wandb_is_told_which_way_metrics_are_better_and_keeps_the_final_figures(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, objective={"_target_": "blockyard.objective.classify.Classify"})
    log = RunLog(folder, Wandb(name="post/s0", group="sweep", job_type="post"), finish_seconds=BOUND)
    log.start()
    for step, accuracy in enumerate([0.1, 0.9, 0.5], 1):
        log.log(step, {"train/loss": 1 / step})
        log.log(step, {"val/accuracy": accuracy, "val/loss": 1 - accuracy})
    log.finish("done", {"metrics": {"val/accuracy": 0.9, "test/accuracy": 0.8}, "parameters": 7})
    folder.release()
    records = _records(folder)
    directions = {r["metric"]["name"]: r["metric"]["summary"] for r in records if r["type"] == "metric"}
    assert directions["val/accuracy"] == directions["test/accuracy"] == {"max": True}
    assert directions["val/loss"] == directions["train/loss"] == {"min": True}
    summary: dict[str, Any] = {}
    for record in records:
        summary |= (record.get("summary") or {}).get("update") or {}
    assert summary["val/loss"] == {"min": pytest.approx(0.1)}
    # What `metric: val/accuracy` of a W&B sweep reads: a number, and that of the weights that were kept.
    assert (summary["val/accuracy"], summary["test/accuracy"], summary["parameters"]) == (0.9, 0.8, 7)
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [row["val/accuracy"] for row in history if "val/accuracy" in row] == [0.1, 0.9, 0.5]
    run = next(record["run"] for record in records if record["type"] == "run")
    assert (run["display_name"], run["run_group"], run["job_type"]) == ("post/s0", "sweep", "post")


SCRIPT = """
import sys, time
from pathlib import Path
from blockyard.engine.loggers.wandb import Wandb
from tests.engine.loggers.logged_runs import log_run, run_folder
print("imported", time.monotonic())
kind, outputs = sys.argv[1:]
import blockyard.engine.loggers._wandb as module
class Struck(Wandb):
    def start(self, folder, config):
        super().start(folder, config)
        process = module.connection()._proc._process
        process.kill() if kind == "kill" else process.send_signal(19) if kind == "stop" else None
        time.sleep(0.3)
print("seconds", log_run(run_folder(Path(outputs)), Struck(), finish_seconds=12.0))
assert "optuna" not in sys.modules
import optuna  # W&B reports it to its helper, where there is one
"""


def _in_a_process(kind: str, outputs: Path, **environment: str) -> tuple[float, float, str]:
    """Seconds the run waited, seconds the process lived after its imports, what it said."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(outputs)],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env=clean | {"HOME": str(outputs), "NETRC": str(outputs / "none")} | environment,
    )
    assert done.returncode == 0, done.stderr
    imported, waited = done.stdout.split("imported")[1].split("seconds")
    return float(waited), time.monotonic() - float(imported), done.stderr


@pytest.mark.full
def test_wandbs_helper_killed_in_the_middle_is_one_warning(tmp_path: Path) -> None:
    waited, _, output = _in_a_process("kill", tmp_path)
    assert waited < BOUND
    assert output.count("the run continues") == 1
    assert "Traceback" not in output


@pytest.mark.full
def test_wandbs_helper_stopped_in_the_middle_delays_a_run_by_a_bounded_time(tmp_path: Path) -> None:
    waited, lived, output = _in_a_process("stop", tmp_path)
    assert waited < BOUND
    assert lived < waited + BOUND
    assert "is abandoned" in output


@pytest.mark.full
def test_a_dead_network_delays_a_run_by_a_bounded_time_and_the_record_is_offline(tmp_path: Path) -> None:
    waited, lived, output = _in_a_process("dead", tmp_path, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY="0" * 40)
    assert waited < BOUND
    assert lived < waited + BOUND
    assert output.count("recorded offline") == 1
    folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    assert len([record for record in _records(folder) if record["type"] == "history"]) == len(STEPS)


@pytest.mark.full
def test_a_network_that_swallows_everything_delays_a_run_by_a_bounded_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        waited, lived, output = _in_a_process("dead", tmp_path, WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40)
    assert waited < BOUND
    assert lived < waited + BOUND
    assert output.count("recorded offline") == 1
