"""The MLflow logger: what MLflow's own client reads back, of runs that end, resume, fail and are swept."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from blockyard.cli import main
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.loggers import RunLog
from blockyard.engine.loggers.mlflow import MLflow
from blockyard.runs.folder import RunFolder
from blockyard.runs.redact import REDACTED
from tests.engine.loggers.logged_runs import BOUND, STEPS, log_run, run_folder
from tests.support import engine_runs
from tests.support.engine_runs import assert_same_bits
from tests.support.fork import blockyard
from tests.support.logged_training import FEW, Logged, logged
from tests.support.tiny import TINY, steps

pytestmark = [
    pytest.mark.xdist_group("mlflow"),  # the import takes seconds
    pytest.mark.skipif(find_spec("mlflow") is None, reason="needs blockyard[mlflow]"),
]

SECRET = "hunter2hunter2"
CONNECTIONS = "connections.txt"


def client(outputs: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{outputs}/mlflow/mlflow.db")


def records(outputs: Path, project: str = "blockyard") -> list[Any]:
    """The runs of an experiment, as MLflow's client returns them."""
    mlflow = client(outputs)
    runs = mlflow.search_runs([mlflow.get_experiment_by_name(project).experiment_id])
    return sorted(runs, key=lambda run: run.info.run_name)


def curve(outputs: Path, run: Any, name: str) -> list[tuple[int, float]]:
    history = client(outputs).get_metric_history(run.info.run_id, name)
    return sorted((metric.step, metric.value) for metric in history)


@pytest.mark.full
def test_the_record_holds_config_metrics_summary_and_no_secret(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, data={"password": SECRET, "words": "x" * 9000}, objective={"k@1": 1})
    log = RunLog(folder, MLflow(tags=["t2"], group="sweep", name="post s0"), finish_seconds=BOUND)
    log.start()
    for step in STEPS:
        log.log(step, {"train/loss": 1 / step, "val/recall@5": 0.25})
    summary = {"metrics": {"train/loss": 0.01, "test/accuracy": 0.5}, "parameters": {"total": 7}, "device": "cpu"}
    log.finish("done", summary)
    folder.release()
    (run,) = records(tmp_path)
    assert (run.info.run_name, run.info.status) == ("post s0", "FINISHED")
    assert curve(tmp_path, run, "train/loss") == [(step, 1 / step) for step in STEPS]
    assert curve(tmp_path, run, "val/recall_5") == [(step, 0.25) for step in STEPS]
    final = {"best/train/loss": 0.01, "test/accuracy": 0.5, "summary/parameters/total": 7}
    assert run.data.metrics == {"train/loss": 1 / STEPS[-1], "val/recall_5": 0.25, **final}
    expected = {
        "choices": "{}",
        "model.dim": "4",
        "objective.k_1": "1",
        "data.password": REDACTED,
        "data.words": "x" * 6000,
        "seed": "0",
    }
    assert run.data.params == expected
    tags = {"group": "sweep", "tags": "t1, t2", "run": folder.name, "state": "done", "summary.device": "cpu"}
    own = {"blockyard.id": folder.facts()["mlflow"]["id"], "mlflow.runName": "post s0"}
    assert run.data.tags == tags | own
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(("state", "status"), [("failed", "FAILED"), ("interrupted", "KILLED")])
@pytest.mark.full
def test_a_run_that_does_not_end_well_has_its_state(tmp_path: Path, state: str, status: str) -> None:
    folder = run_folder(tmp_path)
    log = RunLog(folder, MLflow(path=str(tmp_path / "board" / "mlflow")), finish_seconds=BOUND)
    log.start()
    log.log(1, {"train/loss": float("nan")})
    log.finish(state)
    folder.release()
    (run,) = records(tmp_path / "board")
    assert (run.info.status, run.data.tags["state"]) == (status, state)
    assert str(run.data.metrics["train/loss"]) == "nan"


def test_a_resumed_run_has_one_record_with_every_step_once(tmp_path: Path) -> None:
    """Also the steps that MLflow had after the checkpoint, and those that only metrics.csv had."""
    folder = run_folder(tmp_path)
    first = MLflow()
    first.prepare(folder)
    first.start(folder, {"lr": 1, "dim": 4})
    for step in STEPS:
        folder.metrics.append(step, {"train/loss": 1 / step})
        if step < 15:
            first.log(step, {"train/loss": 1 / step})
        if step < 25:
            first.log(step, {"lr": 0.1})
    first._write_rows()
    folder.metrics.truncate_after(20)
    folder.resumes = True
    second = MLflow()
    second.prepare(folder)
    second.start(folder, {"lr": 2, "dim": 4})
    (run,) = records(tmp_path)
    assert run.info.status == "RUNNING"
    for step in STEPS:
        if step > 20:
            second.log(step, {"train/loss": 1 / step, "lr": 0.1})
    second.finish("done", {})
    folder.release()
    (run,) = records(tmp_path)
    assert run.info.status == "FINISHED"
    assert curve(tmp_path, run, "train/loss") == [(step, 1 / step) for step in STEPS]
    assert curve(tmp_path, run, "lr") == [(step, 0.1) for step in STEPS]
    assert run.data.params == {"lr": "1", "dim": "4"}
    assert run.data.tags["lr"] == "2"
    assert "dim" not in run.data.tags


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run without a logger."""
    return logged(tmp_path_factory.mktemp("none")).folder


def _connections() -> None:
    """Write down every address that the process connects to, and refuse it."""

    def connect(_: Any, address: Any) -> None:
        with Path(CONNECTIONS).open("a") as file:
            file.write(f"{address}\n")
        raise ConnectionRefusedError

    socket.socket.connect = connect  # type: ignore[method-assign]


@pytest.mark.full
def test_a_run_has_the_bits_of_one_without_a_logger_and_opens_no_connection(
    tmp_path: Path, undisturbed: RunFolder
) -> None:
    environment = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    run = logged(tmp_path, "logger=mlflow", sabotage=_connections, environment=environment, patient=True)
    assert (run.code, run.lines) == (0, [])
    assert "mlflow" not in run.printed
    assert_same_bits(run.folder, undisturbed)
    assert not (tmp_path / CONNECTIONS).exists()
    _assert_whole(tmp_path, run)


def _assert_whole(outputs: Path, run: Logged) -> None:
    """The one record has the curve of metrics.csv and the metrics of summary.json."""
    (record,) = records(outputs)
    assert record.info.status == "FINISHED"
    losses = [(row["step"], row["train/loss"]) for row in engine_runs.rows(run.folder)]
    assert curve(outputs, record, "train/loss") == losses
    metrics = run.folder.summary()["metrics"]
    assert record.data.metrics["test/loss"] == metrics["test/loss"]
    assert record.data.metrics["best/val/loss"] == metrics["val/loss"]
    assert record.data.params["choices.block"] == "pre_norm"


@pytest.mark.full
def test_a_run_that_was_killed_goes_on_in_its_record(tmp_path: Path, undisturbed: RunFolder) -> None:
    overrides = (*FEW[len(TINY) :], "logger=mlflow")
    engine_runs.killed_at(9, tmp_path, *overrides)
    run = logged(tmp_path, "logger=mlflow", patient=True)
    assert run.code == 0, run.printed
    assert_same_bits(run.folder, undisturbed)
    _assert_whole(tmp_path, run)


def _failing() -> None:
    """Let training fail at its fifth step."""

    def fail(self: LoopCallback, *_: Any) -> None:
        if self.state.step == 5:
            raise RuntimeError("planted")

    LoopCallback.on_train_batch_start = fail  # type: ignore[method-assign]


@pytest.mark.full
def test_a_run_that_fails_is_failed_in_mlflow(tmp_path: Path) -> None:
    run = logged(tmp_path, "logger=mlflow", sabotage=_failing, patient=True)
    assert run.code == 1
    (record,) = records(tmp_path)
    assert (record.info.status, record.data.tags["state"]) == ("FAILED", "failed")


@pytest.mark.full
def test_the_cells_of_a_sweep_share_an_experiment_and_a_group(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    base = [*TINY, *steps(2, 2), "logger=mlflow"]
    arms = {"pre": ["block=pre_norm"], "post": ["block=post_norm"]}
    file.write_text(yaml.safe_dump({"claim": "Two", "metric": "val/loss", "base": base, "arms": arms, "seeds": [0]}))
    done = blockyard(tmp_path, "sweep", str(file), "outputs=out")
    assert done.returncode == 0, done.stderr
    runs = records(tmp_path / "out")
    assert [(run.info.run_name, run.info.status) for run in runs] == [("post s0", "FINISHED"), ("pre s0", "FINISHED")]
    assert {run.data.tags["group"] for run in runs} == {"two"}
    assert [run.data.tags["tags"] for run in runs] == ["two, post", "two, pre"]
    assert [run.data.params["choices.block"] for run in runs] == ["post_norm", "pre_norm"]


@pytest.mark.full
def test_pictures_are_artifacts_of_the_run(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    log_run(folder, MLflow())
    picture = tmp_path / "mixing.png"
    picture.write_bytes(b"\x89PNG")
    answer = MLflow().pictures(folder, "mixing", {"inspect/mixing": picture})
    assert answer == "MLflow: 1 pictures in run run/s0 of blockyard"
    (run,) = records(tmp_path)
    assert [file.path for file in client(tmp_path).list_artifacts(run.info.run_id, "inspect")] == ["inspect/mixing.png"]
    (copy,) = (tmp_path / "mlflow" / "artifacts").rglob("mixing.png")
    assert copy.read_bytes() == picture.read_bytes()


@pytest.mark.parametrize("content", ["a file", "garbage", "deleted"])
@pytest.mark.full
def test_a_database_that_cannot_be_used_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    if content == "a file":
        (tmp_path / "mlflow").write_text("x")
    elif content == "garbage":
        (tmp_path / "mlflow").mkdir()
        (tmp_path / "mlflow" / "mlflow.db").write_bytes(b"no database" * 400)
    else:
        log_run(run_folder(tmp_path), MLflow())
        mlflow = client(tmp_path)
        mlflow.delete_experiment(mlflow.get_experiment_by_name("blockyard").experiment_id)
    log_run(run_folder(tmp_path, model={"dim": 8}), MLflow())
    assert caplog.text.count("logger MLflow failed to start") == 1
    assert caplog.text.count("the run continues") == 1


@pytest.mark.parametrize("recorded", ["x' OR '1' = '1", 3, None])
def test_an_id_of_a_stranger_s_folder_is_not_taken(tmp_path: Path, recorded: Any) -> None:
    folder = run_folder(tmp_path)
    folder.add_facts({"mlflow": {"id": recorded}})
    MLflow().prepare(folder)
    assert str(folder.facts()["mlflow"]["id"]).isalnum()
    assert folder.facts()["mlflow"]["id"] != recorded
    folder.release()


def test_a_missing_package_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MLflow, "package", "no_such_package")
    overrides = [override for override in TINY if not override.startswith("logger=")]
    assert main(["train", *overrides, "logger=mlflow", f"outputs={tmp_path}"]) == 2
    message = "logger=mlflow needs the package no_such_package: pip install 'blockyard[mlflow]', or logger=none"
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.rglob("metrics.csv"))
    assert not (tmp_path / "mlflow").exists()
