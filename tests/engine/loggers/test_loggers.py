"""Loggers mirror a run; nothing that happens to them reaches it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.contracts import DataSpec
from blockyard.engine.loggers import RunLog, RunLogger
from blockyard.engine.loggers.base import flatten, presented
from blockyard.engine.loggers.none import NoLogger
from blockyard.engine.loggers.shown_samples import _shown
from blockyard.engine.loggers.tensorboard import TensorBoard
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity
from blockyard.runs.start import create_run
from tests.engine.loggers.logged_runs import BOUND, STEPS, log_run, run_folder
from tests.support.tiny import configured

SECRET = "hunter2hunter2"


class Recorder(RunLogger):
    """Writes down what it is told, and breaks where it is told to."""

    def __init__(self, breaks: str = "", how: BaseException | None = None, hangs: float = 0.0) -> None:
        self.breaks, self.how, self.hangs = breaks, how, hangs
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.events: list[str] = []
        self.config: dict[str, Any] = {}

    def _maybe(self, name: str) -> None:
        self.events.append(name)
        if name == self.breaks:
            time.sleep(self.hangs)
            if self.how is not None:
                raise self.how

    def start(self, folder: RunFolder, config: dict[str, Any]) -> None:
        self.config = config
        self._maybe("start")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._maybe("log")
        self.rows.append((step, dict(values)))

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        self._maybe(f"finish {state}")

    def abandon(self) -> None:
        self.events.append("abandon")


def test_a_logger_is_told_everything_in_order_and_no_secret(tmp_path: Path) -> None:
    logger = Recorder()
    log_run(run_folder(tmp_path, data={"password": SECRET}), logger)
    assert logger.rows == [(step, {"train/loss": 1 / step}) for step in STEPS]
    assert logger.events[0] == "start"
    assert logger.events[-1] == "finish done"
    assert SECRET not in str(logger.config)
    assert logger.config["model"] == {"dim": 4}


@pytest.mark.parametrize("breaks", ["start", "log", "finish done"])
@pytest.mark.parametrize("how", [RuntimeError("gone"), OSError(28, "No space left"), SystemExit(1), BrokenPipeError()])
def test_no_error_of_a_logger_reaches_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, breaks: str, how: BaseException
) -> None:
    logger = Recorder(breaks, how)
    assert log_run(run_folder(tmp_path), logger) < BOUND
    assert caplog.text.count("the run continues") == 1
    assert logger.events[-1] == "abandon"


@pytest.mark.parametrize(
    "breaks", ["log", *(pytest.param(each, marks=pytest.mark.full) for each in ("start", "finish done"))]
)
def test_a_logger_that_hangs_is_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture, breaks: str) -> None:
    assert log_run(run_folder(tmp_path), Recorder(breaks, hangs=2 * BOUND), finish_seconds=0.5) < BOUND
    assert "is abandoned" in caplog.text


@pytest.mark.parametrize("kind", ["int16", "float32"])
def test_sounds_are_shown_as_they_are(kind: str) -> None:
    """From -1 to 1, whether the data has samples of 16 bits or numbers; the rate is that of the data's spec."""
    quiet = torch.linspace(-0.1, 0.1, 50)
    samples = (quiet * 32_768).round().to(torch.int16) if kind == "int16" else quiet
    spec = DataSpec("audio", (60,), variable=True, rate=8000)
    content = _shown(spec, None, torch.cat([samples, samples.new_zeros(10)]), torch.tensor([50]))
    sound, rate = content["sound"]
    assert rate == 8000
    torch.testing.assert_close(torch.from_numpy(sound), quiet, atol=1e-4, rtol=0)


@pytest.mark.full
def test_a_logger_that_is_too_slow_loses_rows_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockyard.engine.loggers.run_log._WAITING", 3)
    log_run(run_folder(tmp_path), Recorder("start", hangs=1.0))
    assert caplog.text.count("loses metrics") == 1


def test_without_a_logger_the_table_is_written(tmp_path: Path) -> None:
    log_run(run_folder(tmp_path), None)
    log_run(run_folder(tmp_path / "b"), NoLogger())


def test_a_missing_package_is_said_before_the_run(tmp_path: Path) -> None:
    class Absent(Recorder):
        package = "no_such_package"

    with pytest.raises(UserError, match=r"needs the package no_such_package.*or logger=none"):
        RunLog(run_folder(tmp_path), Absent())


def test_flatten_keeps_every_leaf() -> None:
    assert flatten({"a": {"b": {"c": 1}}, "d": [1], "e": {}}) == {"a.b.c": 1, "d": [1], "e": {}}


@pytest.mark.parametrize("how", [KeyboardInterrupt(), GeneratorExit(), RuntimeError("\x1b[31m"), OSError("\udcff")])
@pytest.mark.parametrize("breaks", ["start", "log", "finish done"])
def test_what_is_no_exception_and_what_cannot_be_printed_is_one_line_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, breaks: str, how: BaseException
) -> None:
    assert log_run(run_folder(tmp_path), Recorder(breaks, how)) < BOUND
    assert caplog.text.count("the run continues") == 1
    assert caplog.messages[-1].isprintable()
    caplog.messages[-1].encode()


def test_an_error_before_the_first_step_leaves_the_logger_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Unprepared(Recorder):
        def prepare(self, folder: RunFolder) -> None:
            raise RuntimeError("planted")

    logger = Unprepared()
    log_run(run_folder(tmp_path), logger)
    assert caplog.text.count("failed to prepare (RuntimeError: planted") == 1
    assert logger.events == []


@pytest.mark.full
def test_a_logger_that_hangs_while_it_is_abandoned_is_left_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockyard.engine.loggers.run_log._ABANDON_SECONDS", 0.2)
    logger = Recorder("start", hangs=2 * BOUND)
    logger.abandon = lambda: time.sleep(2 * BOUND)  # type: ignore[method-assign]
    assert log_run(run_folder(tmp_path), logger, finish_seconds=0.2) < BOUND
    assert "is abandoned" in caplog.text


def test_a_thread_of_a_logger_s_package_that_fails_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard")
    logger = TensorBoard(flush_seconds=1)
    folder = run_folder(tmp_path)
    log = RunLog(folder, logger)
    original = logger.start

    def start(*arguments: Any) -> None:
        original(*arguments)
        shutil.rmtree(folder.path / "tensorboard")

    logger.start = start  # type: ignore[method-assign]
    log.start()
    for step in STEPS:
        log.log(step, {"train/loss": 1.0})
    log.finish("done", {})
    folder.release()
    assert "Traceback" not in capsys.readouterr().err
    assert sum("the run continues" in message for message in caplog.messages) in (1, 2)


def test_several_loggers_are_fed_beside_each_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, broken = Recorder(), Recorder("log", how=RuntimeError("no"))
    log = RunLog(run_folder(tmp_path), whole, broken, None, finish_seconds=BOUND)
    log.start()
    for step in STEPS:
        log.log(step, {"train/loss": 1 / step})
    log.finish("done", {})
    assert [step for step, _ in whole.rows] == list(STEPS)
    assert whole.events[-1] == "finish done"
    assert broken.events[-1] == "abandon"
    assert caplog.text.count("logger Recorder failed to log") == 1


def test_several_loggers_and_callbacks_are_chosen_as_lists(tmp_path: Path) -> None:
    """The options of each are under its name, and callbacks are one collection."""
    from blockyard.engine.loggers import run_loggers
    from blockyard.sweep.plan.cell_settings import with_run_name, with_sweep_labels

    config, choices = configured(
        *("logger=[tensorboard,wandb]", "logger.wandb.project=mine", "callbacks=[early_stopping,ema]"),
        *("callbacks.ema.decay=0.5", "callbacks.early_stopping.patience=2", f"outputs={tmp_path}"),
    )
    assert (choices["logger"], choices["callbacks"]) == ("tensorboard,wandb", "early_stopping,ema")
    assert [type(each).__name__ for each in run_loggers(config)] == ["TensorBoard", "Wandb"]
    assert config["logger"]["wandb"]["project"] == "mine"
    assert {"checkpoint", "early_stopping", "ema"} <= config["callbacks"].keys()
    assert (config["callbacks"]["ema"]["decay"], config["callbacks"]["early_stopping"]["patience"]) == (0.5, 2)
    plain, _ = configured(
        *("callbacks=[early_stopping,ema]", "callbacks.ema.decay=0.5", "callbacks.early_stopping.patience=2")
    )
    assert identity(config) == identity(plain)
    labelled = with_run_name(with_sweep_labels(config, "question", "arm"), "arm s0")
    assert [each["group"] for each in labelled["logger"].values()] == ["question", "question"]
    assert [each["name"] for each in labelled["logger"].values()] == ["arm s0", "arm s0"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("logger=[tensorboard,wandbb]", "unknown logger 'wandbb'; did you mean wandb?"),
        ("logger=[wandb,wandb]", "logger: names a choice twice"),
        ("logger=[]", "logger: names no choice (try logger=none)"),
        ("block=[pre_norm,post_norm]", "unknown block ['pre_norm', 'post_norm']"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused(override: str, message: str) -> None:
    assert any(message in str(issue) for issue in check(compose([override])))


def test_loggers_get_the_names_of_choices_and_no_wiring(tmp_path: Path) -> None:
    plain, choices = configured("position=rope", "logger=wandb", "optimizer.lr=0.003", f"outputs={tmp_path}")
    with create_run(plain, command=["test"], choices=choices) as folder:
        result = presented(folder)
    assert result["choices"]["position"] == "rope"
    assert result["optimizer"]["lr"] == 0.003
    flat = flatten(result)
    assert not [key for key in flat if key.endswith(("_target_", "_partial_"))]
    assert not {"outputs", "force", "allow", "logger", "tags"} & result.keys()
