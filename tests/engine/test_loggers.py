"""Loggers mirror a run; nothing that happens to them reaches it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.engine.loggers import RunLog, RunLogger
from blockyard.engine.loggers.base import flatten
from blockyard.engine.loggers.none import NoLogger
from blockyard.engine.loggers.presented import presented
from blockyard.engine.loggers.tensorboard import TensorBoard
from blockyard.engine.loggers.trackio import Trackio
from blockyard.engine.loggers.wandb import Wandb
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.identity import identity
from blockyard.runs.start import create_run
from tests.engine.logged_runs import BOUND, STEPS, log_run, run_folder
from tests.tiny import configured

SECRET = "hunter2hunter2"


class Recorder(RunLogger):
    """Writes down what it is told, and breaks where it is told to."""

    def __init__(self, breaks: str = "", how: BaseException | None = None, hangs: float = 0.0) -> None:
        self.breaks, self.how, self.hangs = breaks, how, hangs
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.said: list[str] = []
        self.config: dict[str, Any] = {}

    def _maybe(self, name: str) -> None:
        self.said.append(name)
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
        self.said.append("abandon")


def test_a_logger_is_told_everything_in_order_and_no_secret(tmp_path: Path) -> None:
    logger = Recorder()
    log_run(run_folder(tmp_path, data={"password": SECRET}), logger)
    assert logger.rows == [(step, {"train/loss": 1 / step}) for step in STEPS]
    assert logger.said[0] == "start"
    assert logger.said[-1] == "finish done"
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
    assert logger.said[-1] == "abandon"


@pytest.mark.parametrize(
    "breaks", ["log", *(pytest.param(each, marks=pytest.mark.full) for each in ("start", "finish done"))]
)
def test_a_logger_that_hangs_is_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture, breaks: str) -> None:
    assert log_run(run_folder(tmp_path), Recorder(breaks, hangs=2 * BOUND), finish_seconds=0.5) < BOUND
    assert "is abandoned" in caplog.text


def test_a_logger_that_is_too_slow_loses_rows_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockyard.engine.loggers.feed._WAITING", 3)
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


# -- Weights & Biases -----------------------------------------------------------------------------


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
    said = subprocess.run(
        [shutil.which("wandb") or str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(path)],
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]


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
    known = folder.facts()["wandb"]["id"]
    records = _records(folder)
    run = next(record["run"] for record in records if record["type"] == "run")
    assert run["run_id"] == known
    assert run["config"]["update"]["data"]["deep"] == {"er": [1, {"x": None}]}
    assert (run["display_name"], run["run_group"], run["job_type"]) == ("run/s0", folder.path.parent.name, "arm")
    assert set(run["tags"]) == {"t1", "t2"}
    assert len([record for record in records if record["type"] == "history"]) == len(STEPS)
    for path in (path for path in folder.path.rglob("*") if path.is_file()):
        assert SECRET.encode() not in path.read_bytes(), path
    # A second start of the same run goes on under the same id.
    again = RunFolder.open(folder.path)
    Wandb().prepare(again)
    assert again.facts()["wandb"]["id"] == known


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
    ways = {r["metric"]["name"]: r["metric"]["summary"] for r in records if r["type"] == "metric"}
    assert ways["val/accuracy"] == ways["test/accuracy"] == {"max": True}
    assert ways["val/loss"] == ways["train/loss"] == {"min": True}
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
from tests.engine.logged_runs import log_run, run_folder
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
"""


def _in_a_process(kind: str, outputs: Path, **environment: str) -> tuple[float, float, str]:
    """Seconds the run waited, seconds the process lived after its imports, what it said."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(outputs)],
        capture_output=True,
        text=True,
        timeout=600,
        env=clean | {"HOME": str(outputs), "NETRC": str(outputs / "none")} | environment,
    )
    assert done.returncode == 0, done.stderr
    imported, waited = done.stdout.split("imported")[1].split("seconds")
    return float(waited), time.monotonic() - float(imported), done.stderr


def test_wandbs_helper_killed_in_the_middle_is_one_warning(tmp_path: Path) -> None:
    waited, _, said = _in_a_process("kill", tmp_path)
    assert waited < BOUND
    assert said.count("the run continues") == 1
    assert "Traceback" not in said


@pytest.mark.full
def test_wandbs_helper_stopped_in_the_middle_delays_a_run_by_a_bounded_time(tmp_path: Path) -> None:
    waited, lived, said = _in_a_process("stop", tmp_path)
    assert waited < BOUND
    assert lived < waited + BOUND
    assert "is abandoned" in said


def test_a_dead_network_delays_a_run_by_a_bounded_time_and_the_record_is_offline(tmp_path: Path) -> None:
    waited, lived, said = _in_a_process("dead", tmp_path, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY="0" * 40)
    assert waited < BOUND
    assert lived < waited + BOUND
    assert said.count("recorded offline") == 1
    folder = RunFolder.open(next(tmp_path.glob("*/s0")))
    assert len([record for record in _records(folder) if record["type"] == "history"]) == len(STEPS)


@pytest.mark.full
def test_a_network_that_swallows_everything_delays_a_run_by_a_bounded_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        waited, lived, said = _in_a_process("dead", tmp_path, WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40)
    assert waited < BOUND
    assert lived < waited + BOUND
    assert said.count("recorded offline") == 1


# -- the others -----------------------------------------------------------------------------------


def test_tensorboard_holds_config_and_metrics(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = run_folder(tmp_path, data={"password": SECRET})
    log_run(folder, TensorBoard())
    events = accumulator.EventAccumulator(str(folder.path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(STEPS)
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| model.dim | 4 |" in text
    assert SECRET not in text


def test_tensorboard_shows_a_sweep_by_arm_and_seed(tmp_path: Path) -> None:
    multiplexer = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_multiplexer")
    for seed in (0, 1):
        for _ in range(2):  # a run that is taken up takes its place again
            log_run(run_folder(tmp_path, seed=seed, force=True), TensorBoard(group="sweep", name=f"post/s{seed}"))
    log_run(run_folder(tmp_path, model={"dim": 8}), TensorBoard(group="../up", name="../s0"))
    found = multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "tensorboard")).Reload()
    runs = sorted(found.Runs())
    assert runs[:2] == ["sweep/post/s0", "sweep/post/s1"]
    assert [event.step for event in found.Tensors("sweep/post/s0", "train/loss")] == list(STEPS)
    assert not list(tmp_path.parent.glob("up*"))


def test_trackio_holds_a_flat_config(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    code = (
        "import sys; from pathlib import Path\n"
        "from blockyard.engine.loggers.trackio import Trackio\n"
        "from tests.engine.logged_runs import log_run, run_folder\n"
        "out = Path(sys.argv[1])\n"
        "board = str(out / 'board')\n"
        "log_run(run_folder(out), Trackio(project='yard', directory=board, group='sweep', name='post/s0'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "the run continues" not in done.stderr
    database = next((tmp_path / "board").glob("*.db"))
    content = b"".join(path.read_bytes() for path in database.parent.glob("*.db*"))
    assert b"model.dim" in content
    assert b"sweep/post/s0" in content
    assert Trackio().package == "trackio"


def test_trackio_takes_pictures_into_the_record_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    code = (
        "import sys, sqlite3; from pathlib import Path\n"
        "from PIL import Image\n"
        "from blockyard.engine.loggers.trackio import Trackio\n"
        "from tests.engine.logged_runs import log_run, run_folder\n"
        "out = Path(sys.argv[1])\n"
        "folder = run_folder(out)\n"
        "logger = lambda: Trackio(project='yard', directory=str(out / 'board'))\n"
        "log_run(folder, logger())\n"
        "Image.new('RGB', (4, 4), 'red').save(out / 'mixing.png')\n"
        "assert logger().pictures(folder, 'mixing', {'inspect/mixing': out / 'mixing.png'}).startswith('Trackio: 1 ')\n"
        "runs = sqlite3.connect(next((out / 'board').glob('*.db'))).execute('select distinct run_name from metrics')\n"
        "assert [name for (name,) in runs] == [folder.name]\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (picture,) = (tmp_path / "board" / "media").rglob("*.png")
    assert picture.read_bytes() == (tmp_path / "mixing.png").read_bytes()
    database = next((tmp_path / "board").glob("*.db"))
    assert b"inspect/mixing" in b"".join(path.read_bytes() for path in database.parent.glob("*.db*"))


def test_a_logger_without_a_place_for_pictures_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Silent(NoLogger):
        pictures = RunLogger.pictures

    folder = run_folder(tmp_path)
    assert NoLogger().pictures(folder, "mixing", {}) is None
    assert not caplog.records
    assert Silent().pictures(folder, "mixing", {}) is None
    assert "logger Silent does not take pictures" in caplog.text


def test_tensorboard_asks_for_the_table_in_the_run_s_own_thread(tmp_path: Path) -> None:
    import threading

    asked: list[str] = []

    class Watched:
        resumes = True
        path = tmp_path

        @property
        def metrics(self) -> Any:
            asked.append(threading.current_thread().name)
            return type("Table", (), {"last_step": 7})

    logger, folder = TensorBoard(), Watched()
    logger.prepare(folder)
    assert logger._purge == 8
    other = threading.Thread(target=lambda: pytest.importorskip("tensorboard") and logger.start(folder, {}))
    other.start()
    other.join()
    assert asked == [threading.main_thread().name]


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
    assert logger.said == []


def test_a_logger_that_hangs_while_it_is_abandoned_is_left_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockyard.engine.loggers.feed._ABANDON_SECONDS", 0.2)
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
    assert sum("the run continues" in message for message in caplog.messages) <= 2


def test_several_loggers_are_fed_beside_each_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole, broken = Recorder(), Recorder("log", how=RuntimeError("no"))
    log = RunLog(run_folder(tmp_path), whole, broken, None, finish_seconds=BOUND)
    log.start()
    for step in STEPS:
        log.log(step, {"train/loss": 1 / step})
    log.finish("done", {})
    assert [step for step, _ in whole.rows] == list(STEPS)
    assert whole.said[-1] == "finish done"
    assert broken.said[-1] == "abandon"
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
        found = presented(folder)
    assert found["choices"]["position"] == "rope"
    assert found["optimizer"]["lr"] == 0.003
    flat = flatten(found)
    assert not [key for key in flat if key.endswith(("_target_", "_partial_"))]
    assert not {"outputs", "force", "allow", "logger", "tags"} & found.keys()
