"""W&B online, and an offline run that is synced later, against a server of our own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine_runs import assert_same_bits, rows
from tests.support.logged_training import logged
from tests.support.wandb_server import Received, WandbServer

pytestmark = pytest.mark.xdist_group("wandb_server")


def assert_received(received: Received, outputs: Path) -> None:
    """The server has the config, every row and the summary of the run."""
    from blockyard.runs.folder import RunFolder

    (path,) = [path.parent for path in outputs.glob("*/s0/config.yaml")]
    folder = RunFolder.open(path)
    assert received.config["model"]["value"]["dim"] == 16
    expected = {
        int(row["step"]): {k: v for k, v in row.items() if k not in ("step", "seconds")} for row in rows(folder)
    }
    arrived = {
        step: {k: v for k, v in row.items() if k != "seconds"}
        for step, row in received.rows.items()
        if step in expected
    }
    assert arrived == expected
    metrics = folder.summary()["metrics"]
    assert {name: received.summary[name] for name in metrics} == pytest.approx(metrics)
    assert received.summary["state"] == "done"
    assert received.exit_code == 0


def test_an_online_run_arrives_whole(tmp_path: Path) -> None:
    with WandbServer() as server:
        run = logged(tmp_path, "logger=wandb", "tags=[a,b]", environment=server.environment, patient=True)
    assert (run.code, run.lines) == (0, [])
    (run_id,) = server.runs
    assert run_id == run.folder.facts()["wandb"]["id"]
    received = server.runs[run_id]
    assert_received(received, tmp_path)
    assert received.settings["project"] == "blockyard"
    assert received.settings["groupName"] == run.folder.path.parent.name
    assert received.settings["tags"] == ["a", "b"]
    assert server.key not in str(received)
    assert_same_bits(run.folder, logged(tmp_path / "none").folder)


def test_an_offline_run_is_synced_later(tmp_path: Path) -> None:
    run = logged(tmp_path / "outputs", "logger=wandb", environment={"WANDB_MODE": "offline"}, patient=True)
    assert (run.code, run.lines) == (0, [])
    (record,) = run.folder.path.glob("wandb/offline-run-*")
    program = shutil.which("wandb") or str(Path(sys.executable).parent / "wandb")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    with WandbServer() as server:
        done = subprocess.run(
            [program, "sync", str(record)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env=clean | {"HOME": str(tmp_path)} | server.environment,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    (run_id,) = server.runs
    assert run_id == run.folder.facts()["wandb"]["id"]
    assert_received(server.runs[run_id], tmp_path / "outputs")
