"""Lightning's own callbacks, loggers and Trainer flags work in a run."""

from __future__ import annotations

import csv
import inspect
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from blockyard.config import lightning
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.lightning import OWNED_FLAGS, refused_flags
from blockyard.engine import job
from blockyard.engine.loggers import RunLog, run_loggers
from blockyard.engine.trainer import TrainerPlan
from blockyard.runs.checkpoint import read
from blockyard.runs.folder import RunFolder
from tests.support.engine_runs import assert_same_bits, killed_at, rows, run, state
from tests.support.every import every
from tests.support.tiny import TINY

STOCK = "pytorch_lightning.callbacks"
EMA = (f"callbacks.ema._target_={STOCK}.EMAWeightAveraging", "callbacks.ema.decay=0.8")
SWA = (
    f"callbacks.swa._target_={STOCK}.StochasticWeightAveraging",
    *("callbacks.swa.swa_lrs=0.01", "callbacks.swa.swa_epoch_start=2", "callbacks.swa.annealing_epochs=2"),
    *("trainer.max_steps=80", "schedule=constant"),
)
SAVE = "callbacks.checkpoint.every=3"


def weights(content: dict[str, Any], key: str = "state_dict") -> dict[str, torch.Tensor]:
    return {name: value for name, value in content[key].items() if name.startswith("model.")}


def test_learning_rate_monitor_adds_columns(tmp_path: Path) -> None:
    overrides = ("callbacks=default", f"callbacks.rates._target_={STOCK}.LearningRateMonitor")
    metrics = rows(run(tmp_path, *overrides, "callbacks.rates.logging_interval=step"))
    logged = [row for row in metrics if "lr" in row]
    assert [row["step"] for row in logged] == [4, 8, 12, 16, 20, 24, 28, 30]
    name = next(key for key in logged[0] if key.startswith("lr-AdamW"))
    # Both are the rate of the step that the row is about.
    assert [row[name] for row in logged[:-1]] == [row["lr"] for row in logged[:-1]]
    assert len({row["lr"] for row in logged}) > 4


@pytest.mark.full
def test_averaged_weights_are_evaluated_saved_and_tested(tmp_path: Path) -> None:
    run_folder = run(tmp_path, *EMA)
    plain = run(tmp_path / "plain")
    content = read(run_folder.checkpoints / "last.ckpt")
    # The steps are those of the run without an average; what is evaluated and tested is the average.
    assert rows(run_folder)[0] == rows(plain)[0]
    losses = [[row["val/loss"] for row in rows(each) if "val/loss" in row] for each in (run_folder, plain)]
    assert losses[0] != losses[1]
    assert content["averaging_state"]["n_averaged"] == 30
    before_the_end = read(run_folder.checkpoints / "previous.ckpt")
    current = weights(before_the_end, "current_model_state")
    assert not any(torch.equal(value, current[name]) for name, value in weights(before_the_end).items())
    from blockyard.evaluate.api import evaluate

    assert evaluate(run_folder.path)["test/loss"] == run_folder.summary()["metrics"]["test/loss"]


@pytest.mark.parametrize("overrides", [EMA, pytest.param(SWA, marks=pytest.mark.full)], ids=["ema", "swa"])
def test_averages_survive_a_kill_to_the_last_bit(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    whole = run(tmp_path / "whole", *overrides, SAVE)
    for step in (10, 20, 25) if overrides is EMA else (25, 43, 60):
        assert killed_at(step, tmp_path / "killed", *overrides, SAVE) == -signal.SIGKILL
    killed = run(tmp_path / "killed", *overrides, SAVE)
    assert_same_bits(killed, whole)
    key = "averaging_state" if overrides is EMA else "callbacks"
    contents = [read(each.checkpoints / "last.ckpt")[key] for each in (killed, whole)]
    averages = [c if overrides is EMA else c["StochasticWeightAveraging"]["average_model_state"] for c in contents]
    for name, value in averages[0].items():
        torch.testing.assert_close(value, averages[1][name], rtol=0, atol=0)


@pytest.mark.full
def test_stochastic_weight_averaging_ends_with_the_average(tmp_path: Path) -> None:
    run_folder = run(tmp_path, *SWA, "callbacks=quiet")
    content = read(run_folder.checkpoints / "last.ckpt")
    average = content["callbacks"]["StochasticWeightAveraging"]["average_model_state"]
    for name, value in weights(content).items():
        torch.testing.assert_close(value, average[name], rtol=0, atol=0)
    assert content["lr_schedulers"]  # its own schedule took over
    assert rows(run_folder)[-1]["step"] == 80
    assert "val/loss" in rows(run_folder)[-1]


def test_a_timer_ends_a_run_as_done(tmp_path: Path) -> None:
    overrides = (f"callbacks.timer._target_={STOCK}.Timer", "callbacks.timer.interval=step")
    run_folder = run(
        tmp_path,
        *overrides,
        "callbacks.timer.duration={seconds: 1}",
        "trainer.max_steps=100000",
        "trainer.max_epochs=null",
    )
    summary = run_folder.summary()
    assert run_folder.status.state == "done"
    assert 0 < summary["steps"] < 100000
    assert summary["stopped"] == "a Lightning callback stopped it"
    assert rows(run_folder)[-1]["step"] == summary["steps"]
    assert "val/loss" in rows(run_folder)[-1]


def test_lightnings_early_stopping_sees_the_validation_metrics(tmp_path: Path) -> None:
    overrides = (f"callbacks.stop._target_={STOCK}.EarlyStopping", "callbacks.stop.monitor=val/loss")
    more = ("callbacks.stop.min_delta=9.0", "callbacks.stop.patience=1", "trainer.max_steps=200")
    run_folder = run(tmp_path, *overrides, *more, "trainer.eval_every=20")
    # It looks when an epoch of 20 steps has ended, and the second has not improved.
    assert run_folder.summary()["steps"] == 41
    saved = read(run_folder.checkpoints / "last.ckpt")["callbacks"]
    assert any(key.startswith("EarlyStopping") and value["wait_count"] >= 1 for key, value in saved.items())


def test_device_stats_reach_the_metrics(tmp_path: Path) -> None:
    run_folder = run(tmp_path, f"callbacks.stats._target_={STOCK}.DeviceStatsMonitor")
    assert any("cpu_percent" in key for row in rows(run_folder) for key in row)


OWN = '''
import pytorch_lightning as pl


class Witness(pl.Callback):
    """Notes its calls, counts across a resume, and logs."""

    def __init__(self, *, path: str) -> None:
        self.path = path
        self.steps = 0

    def note(self, trainer, hook):
        with open(self.path, "a") as file:
            file.write(f"{hook} {trainer.current_epoch} {trainer.global_step}\\n")

    def on_train_epoch_start(self, trainer, module):
        self.note(trainer, "epoch_start")

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.steps += 1
        self.log("mine/steps", float(self.steps))
        self.log_dict({"mine/loss": outputs["loss"]})

    def on_train_epoch_end(self, trainer, module):
        self.note(trainer, "epoch_end")
        self.log("mine/epoch", float(trainer.current_epoch))

    def on_validation_start(self, trainer, module):
        self.note(trainer, "validation_start")

    def on_validation_end(self, trainer, module):
        assert 0 < trainer.callback_metrics["val/loss"] < 9
        self.note(trainer, "validation_end")

    def on_train_end(self, trainer, module):
        self.note(trainer, "end")

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state_dict):
        self.steps = state_dict["steps"]
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Overrides that name a callback of the user's own."""
    (tmp_path / "ownhooks.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return (
        *("allow=[ownhooks]", "callbacks.mine._target_=ownhooks.Witness", f"callbacks.mine.path={tmp_path}/notes"),
        "trainer.eval_every=20",
    )


def test_a_callback_of_ones_own_sees_epochs_and_validation_and_logs(tmp_path: Path, own: tuple[str, ...]) -> None:
    run_folder = run(tmp_path, *own, "trainer.max_steps=45")
    assert (tmp_path / "notes").read_text().splitlines() == [
        "epoch_start 0 0",
        *("validation_start 0 20", "validation_end 0 20", "epoch_end 0 20", "epoch_start 1 20"),
        *("validation_start 1 40", "validation_end 1 40", "epoch_end 1 40", "epoch_start 2 40"),
        *("epoch_end 2 45", "end 3 45", "validation_start 3 45", "validation_end 3 45"),
    ]
    table = {row["step"]: row for row in rows(run_folder)}
    assert [step for step, row in table.items() if "mine/steps" in row] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44]
    assert table[40]["mine/steps"] == 40
    assert {step: row["mine/epoch"] for step, row in table.items() if "mine/epoch" in row} == {20: 0, 40: 1, 45: 2}


@pytest.mark.full
def test_the_state_of_a_callback_survives_a_kill(tmp_path: Path, own: tuple[str, ...]) -> None:
    assert killed_at(30, tmp_path, *own, SAVE, "trainer.max_steps=45") == -signal.SIGKILL
    run_folder = run(tmp_path, *own, SAVE, "trainer.max_steps=45")
    assert rows(run_folder)[-2]["mine/steps"] == 44
    assert read(run_folder.checkpoints / "last.ckpt")["callbacks"]["Witness"]["steps"] == 45


@pytest.mark.full
def test_a_callback_that_only_watches_changes_nothing(tmp_path: Path, own: tuple[str, ...]) -> None:
    watched, plain = run(tmp_path / "a", *own), run(tmp_path / "b", "trainer.eval_every=20")
    for key, value in state(plain).items():
        torch.testing.assert_close(state(watched)[key], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ModelCheckpoint", "use callbacks.checkpoint.every"),
        ("RichProgressBar", "use callbacks.progress"),
        ("LearningRateFinder", "use a sweep over optimizer.lr"),
    ],
)
def test_callbacks_that_do_what_the_run_does_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    composed = compose([*TINY, f"outputs={tmp_path}", f"callbacks.x._target_={STOCK}.{name}"])
    (issue,) = check(composed)
    assert f"callbacks.x._target_: {name} does what the run does itself" in str(issue)
    assert reason in str(issue)


@pytest.mark.full
def test_extra_flags_reach_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers: list[pl.Trainer] = []
    original = job.lightning_trainer
    monkeypatch.setattr(job, "lightning_trainer", lambda *a, **k: trainers.append(original(*a, **k)) or trainers[-1])
    folder = run(tmp_path, "trainer.extra={detect_anomaly: true}", "trainer.max_steps=2")
    assert trainers[0]._detect_anomaly
    plain = run(tmp_path, "trainer.max_steps=2")
    assert not trainers[1]._detect_anomaly
    assert folder.identity != plain.identity


def test_flags_that_the_run_owns_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"trainer.extra.max_epochs belongs to the run: use trainer.max_epochs"):
        TrainerPlan(extra={"max_epochs": 3})
    (unknown,) = refused_flags({"detect_anomalie": True})
    assert "no such flag; did you mean detect_anomaly?" in unknown
    import inspect

    flags = set(inspect.signature(pl.Trainer).parameters)
    assert set(OWNED_FLAGS) <= flags
    assert {"benchmark", "detect_anomaly", "max_time", "sync_batchnorm"} <= flags - set(OWNED_FLAGS)


# -- loggers --------------------------------------------------------------------------------------


def test_a_lightning_logger_gets_metrics_config_and_no_secret(tmp_path: Path) -> None:
    overrides = ("logger._target_=pytorch_lightning.loggers.CSVLogger", f"logger.save_dir={tmp_path}/csv")
    run_folder = run(tmp_path, *overrides, "callbacks=default", "callbacks.progress.bar=false")
    (table,) = (tmp_path / "csv").rglob("metrics.csv")
    logged = list(csv.DictReader(table.open()))
    steps = [int(row["step"]) for row in logged if row["train/loss"]]
    assert steps == [int(row["step"]) for row in rows(run_folder) if "train/loss" in row]
    assert float(logged[-1]["test/loss"]) == run_folder.summary()["metrics"]["test/loss"]
    assert "model.dim: 16" in next((tmp_path / "csv").rglob("hparams.yaml")).read_text()


def test_a_secret_does_not_reach_a_lightning_logger(tmp_path: Path) -> None:
    from blockyard.runs.start import create_run

    node = {"_target_": "pytorch_lightning.loggers.CSVLogger", "save_dir": str(tmp_path / "csv")}
    plain = {"seed": 0, "outputs": str(tmp_path), "data": {"password": "hunter2hunter2"}, "logger": node}
    with create_run(plain, command=["test"]) as folder:
        log = RunLog(folder, _logger(node))
        log.start()
        log.log(1, {"loss": 0.5})
        log.finish("done", {"metrics": {"test/loss": 0.4}})
    text = "".join(path.read_text() for path in (tmp_path / "csv").rglob("*") if path.is_file())
    assert "0.4" in text
    assert "hunter2" not in text


def _logger(node: dict[str, Any]) -> Any:
    from blockyard.config.instantiate import instantiate
    from blockyard.engine.loggers.lightning import LightningLogger

    return LightningLogger(instantiate(node, []))


@pytest.mark.parametrize("at", ["start", "log", "finish"])
def test_a_lightning_logger_that_fails_never_stops_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: str
) -> None:
    overrides = ("allow=[tests]", "logger._target_=tests.engine.loggers.broken_logger.Broken", f"logger.at={at}")
    assert run(tmp_path, *overrides).status.state == "done"
    assert caplog.text.count("logger Broken failed to") == 1


def test_a_logger_without_its_package_is_said_before_the_run(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    overrides = ("logger._target_=pytorch_lightning.loggers.NeptuneLogger", f"outputs={tmp_path}")
    problems = [str(issue) for issue in check(compose([*TINY, *overrides]))]
    assert problems
    assert every(problem.startswith("logger") for problem in problems)


def test_the_logger_of_a_config_is_wrapped_where_it_is_lightnings(tmp_path: Path) -> None:
    plain = compose([*TINY, f"outputs={tmp_path}", "logger._target_=pytorch_lightning.loggers.CSVLogger"]).config
    assert "save_dir" not in plain["logger"]
    run_folder = RunFolder.open(run(tmp_path).path)
    assert run_loggers(run_folder.config)[0].label == "NoLogger"
    node = {"_target_": "pytorch_lightning.loggers.CSVLogger", "save_dir": str(tmp_path)}
    assert run_loggers(run_folder.config | {"logger": node})[0].label == "CSVLogger"
    assert json.loads(json.dumps(run_folder.config))["logger"]["_target_"].endswith("NoLogger")


@pytest.mark.sampled(100)
@pytest.mark.parametrize("hook", ["on_before_zero_grad", "on_train_epoch_start"])
def test_stop_iteration_of_a_callback_is_a_failure_that_a_resume_makes_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    """Lightning takes it for the end of an epoch."""
    overrides = (f"callbacks.plain._target_={STOCK}.Callback", SAVE)
    whole = run(tmp_path / "whole", *overrides)
    calls = [0]

    def raises(*_: Any) -> None:
        calls[0] += 1
        if calls[0] == (30 if hook == "on_before_zero_grad" else 4):
            raise StopIteration

    with monkeypatch.context() as patch:
        patch.setattr(pl.Callback, hook, raises)
        run_folder = run(tmp_path / "runs", *overrides, code=1)
    assert "a component or a callback raised StopIteration, or skipped the rest of an epoch (after step" in str(
        run_folder.status.reason
    )
    with run_folder.lock():
        run_folder.set_status("interrupted", "for this test")
    assert_same_bits(run(tmp_path / "runs", *overrides), whole)


def test_flags_that_are_proposed_are_those_that_pass() -> None:
    assert set(lightning.PASSED_ON) == set(inspect.signature(pl.Trainer).parameters) - set(OWNED_FLAGS)
