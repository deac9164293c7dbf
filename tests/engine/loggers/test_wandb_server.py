"""W&B online, and an offline run that is synced later, against a server of our own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import wave
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockyard.engine.loggers import RunLog
from blockyard.engine.loggers._wandb_artifacts import sample_table
from blockyard.engine.loggers.base import Histograms
from blockyard.engine.loggers.run_log import GradientHistograms
from blockyard.engine.loggers.shown_samples import ShownSample
from blockyard.engine.loggers.wandb import Wandb
from blockyard.runs.folder import RunFolder
from tests.engine.loggers.logged_runs import run_folder
from tests.support.engine_runs import assert_same_bits, rows, signal_after
from tests.support.logged_training import logged
from tests.support.wandb_server import Received, WandbServer

pytestmark = pytest.mark.xdist_group("wandb_server")


def assert_received(received: Received, outputs: Path) -> None:
    """The server has the config, every row and the summary of the run."""
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


def sync(folder: RunFolder, server: WandbServer, home: Path) -> subprocess.CompletedProcess[str]:
    """Send what an offline run has recorded, as a user does."""
    (record,) = folder.path.glob("wandb/offline-run-*")
    program = shutil.which("wandb") or str(Path(sys.executable).parent / "wandb")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    return subprocess.run(
        [program, "sync", str(record)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=home,
        env=clean | {"HOME": str(home)} | server.environment,
    )


@pytest.mark.full
def test_an_offline_run_is_synced_later(tmp_path: Path) -> None:
    run = logged(tmp_path / "outputs", "logger=wandb", environment={"WANDB_MODE": "offline"}, patient=True)
    assert (run.code, run.lines) == (0, [])
    with WandbServer() as server:
        done = sync(run.folder, server, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_id,) = server.runs
    assert run_id == run.folder.facts()["wandb"]["id"]
    assert_received(server.runs[run_id], tmp_path / "outputs")


ARTIFACTS = ("logger=wandb", "logger.artifacts=all", "logger.predictions=5", "logger.watch=gradients")


def assert_artifacts(server: WandbServer, folder: RunFolder) -> None:
    """The server has the weights of both checkpoints, made of the data, and they load."""
    (run_id,) = server.runs
    by_alias = {alias: each for each in server.artifacts for alias in each.aliases if each.type == "model"}
    assert {each.name for each in by_alias.values()} == {f"weights-{run_id}"}
    assert by_alias["best"] is by_alias["latest"]
    assert by_alias["last"] is not by_alias["best"]
    fingerprint = folder.facts()["data"]["fingerprint"]
    for each in (by_alias["best"], by_alias["last"]):
        assert set(each.files) == {"config.yaml", "run.json", "model.safetensors"}
        assert each.metadata["data"]["fingerprint"] == fingerprint
        assert each.run == run_id
    (data,) = [each for each in server.artifacts if each.type == "dataset"]
    assert (data.name, data.used_by) == (f"data-{fingerprint[:12]}", [run_id])
    assert by_alias["best"].metadata["metrics"] == pytest.approx(folder.summary()["metrics"])
    (table,) = [json.loads(f) for name, f in server.runs[run_id].files.items() if "test/predictions" in name]
    assert table["columns"] == ["sample", "picture", "target", "predicted", "loss"]
    assert len(table["data"]) == 5
    counted = server.runs[run_id].rows[1]["gradients/blocks.0.channel_mixer.proj_in.weight"]
    assert sum(counted["values"]) == 16 * 16 * 4  # each weight of a map from 16 channels to 4 times as many
    assert len(counted["bins"]) == len(counted["values"]) + 1


@pytest.mark.full
def test_weights_data_samples_and_gradients_arrive_and_change_no_bit(tmp_path: Path) -> None:
    with WandbServer() as server:
        run = logged(tmp_path, *ARTIFACTS, environment=server.environment, patient=True)
    assert (run.code, run.lines) == (0, [])
    assert_artifacts(server, run.folder)
    assert server.key not in str(server.artifacts)
    plain = logged(tmp_path / "none").folder
    assert plain.name == run.folder.name  # the options are not part of the identity
    assert_same_bits(run.folder, plain)
    import torch

    from blockyard.runs.load import load

    (best,) = run.folder.path.glob("wandb/artifacts/best")
    weights = [load(folder).model.state_dict() for folder in (best, run.folder)]
    for name, value in weights[1].items():
        torch.testing.assert_close(weights[0][name], value, rtol=0, atol=0)


@pytest.mark.full
def test_artifacts_of_an_offline_run_are_synced_later(tmp_path: Path) -> None:
    environment = {"WANDB_MODE": "offline"}
    run = logged(tmp_path / "outputs", *ARTIFACTS, environment=environment, patient=True)
    assert (run.code, run.lines) == (0, [])
    with WandbServer() as server:
        done = sync(run.folder, server, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_artifacts(server, run.folder)


@pytest.mark.full
def test_a_resumed_run_has_one_record_and_the_artifacts_of_a_whole_one(tmp_path: Path) -> None:
    with WandbServer() as server:
        online: dict[str, Any] = {"environment": server.environment, "patient": True}
        first = logged(tmp_path, *ARTIFACTS, sabotage=partial(signal_after, 8, signal.SIGTERM), **online)
        assert first.code == 143
        assert [each.type for each in server.artifacts] == []  # of a run that is not done there are no weights
        second = logged(tmp_path, *ARTIFACTS, **online)
    assert second.code == 0
    assert_artifacts(server, second.folder)  # of one run, whose id both attempts have
    (received,) = server.runs.values()
    assert sorted(received.rows) == [row["step"] for row in rows(second.folder)]
    assert received.summary["state"] == "done"
    plain = logged(tmp_path / "none").folder
    assert_same_bits(second.folder, plain)


def test_sounds_texts_and_pictures_are_columns_where_a_sample_has_them(tmp_path: Path) -> None:
    sound = np.sin(np.arange(800, dtype=np.float32))
    rows = [
        ShownSample(0, 0.5, "yes", "no", sound=(sound, 8000)),
        ShownSample(3, 0.25, None, "yes", text="said", picture=np.zeros((4, 4, 3), np.uint8)),
    ]
    table = sample_table(rows, tmp_path)
    assert table.columns == ["sample", "picture", "sound", "text", "target", "predicted", "loss"]
    assert [type(each).__name__ for each in (table.data[0][2], table.data[1][1])] == ["Audio", "Image"]
    with wave.open(str(tmp_path / "0.wav")) as file:
        assert (file.getframerate(), file.getnframes()) == (8000, 800)
        frames = np.frombuffer(file.readframes(800), "<i2") / 32767
    assert np.abs(frames - sound).max() <= 0.5 / 32767 + 1e-7


def test_gradients_are_counted_as_numpy_counts_them() -> None:
    import torch

    model = torch.nn.Linear(3, 2, bias=False)
    model.weight.grad = torch.tensor([[0.0, 1.0, 2.0], [-1.0, 0.5, 0.5]])
    sent: list[tuple[int, Histograms]] = []
    watching = GradientHistograms(lambda step, counted: sent.append((step, counted)))
    state: Any = SimpleNamespace(step=7, learner=SimpleNamespace(model=model))
    watching.on_log(state, {})
    ((step, counted),) = sent
    counts, edges = counted["weight"]
    assert step == 7
    assert (counts.sum(), edges[0], edges[-1]) == (6, -1.0, 2.0)
    assert counts[np.searchsorted(edges, 0.5, side="right") - 1] == 2


def test_gradients_that_cannot_be_counted_end_no_run() -> None:
    """Numbers so close that no bins lie between them."""
    import torch

    model = torch.nn.Linear(2, 1).double()
    model.weight.grad = torch.tensor([[1.0, 1.0 + 2**-52]], dtype=torch.float64)
    model.bias.grad = torch.tensor([1.0], dtype=torch.float64)
    sent: list[tuple[int, Histograms]] = []
    state: Any = SimpleNamespace(step=7, learner=SimpleNamespace(model=model))
    GradientHistograms(lambda step, counted: sent.append((step, counted))).on_log(state, {})
    assert [*sent[0][1]] == ["bias"]


def test_only_what_a_logger_asks_for_is_computed(tmp_path: Path) -> None:
    quiet = RunLog(run_folder(tmp_path), Wandb())
    assert quiet.callbacks() == {}
    refusing: Any = None  # neither components nor data are looked at
    quiet.show(refusing, refusing, refusing)
    assert list(RunLog(run_folder(tmp_path / "b"), Wandb(watch="gradients")).callbacks()) == ["_gradients"]
