"""The TensorBoard and Trackio loggers: what their own readers find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blockyard.engine.loggers import RunLogger
from blockyard.engine.loggers.none import NoLogger
from blockyard.engine.loggers.tensorboard import TensorBoard
from blockyard.engine.loggers.trackio import Trackio
from tests.engine.loggers.logged_runs import STEPS, log_run, run_folder
from tests.support.paths import ROOT

SECRET = "hunter2hunter2"


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
    result = multiplexer.EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "tensorboard")).Reload()
    runs = sorted(result.Runs())
    assert runs[:2] == ["sweep/post/s0", "sweep/post/s1"]
    assert [event.step for event in result.Tensors("sweep/post/s0", "train/loss")] == list(STEPS)
    assert not list(tmp_path.parent.glob("up*"))


@pytest.mark.full
def test_trackio_holds_a_flat_config(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    code = (
        "import sys; from pathlib import Path\n"
        "from blockyard.engine.loggers.trackio import Trackio\n"
        "from tests.engine.loggers.logged_runs import log_run, run_folder\n"
        "out = Path(sys.argv[1])\n"
        "board = str(out / 'board')\n"
        "log_run(run_folder(out), Trackio(project='yard', directory=board, group='sweep', name='post/s0'))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "the run continues" not in done.stderr
    database = next((tmp_path / "board").glob("*.db"))
    content = b"".join(path.read_bytes() for path in database.parent.glob("*.db*"))
    assert b"model.dim" in content
    assert b"sweep/post/s0" in content
    assert Trackio().package == "trackio"


@pytest.mark.full
def test_trackio_takes_pictures_into_the_record_of_the_run(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    code = (
        "import sys, sqlite3; from pathlib import Path\n"
        "from PIL import Image\n"
        "from blockyard.engine.loggers.trackio import Trackio\n"
        "from tests.engine.loggers.logged_runs import log_run, run_folder\n"
        "out = Path(sys.argv[1])\n"
        "folder = run_folder(out)\n"
        "logger = lambda: Trackio(project='yard', directory=str(out / 'board'))\n"
        "log_run(folder, logger())\n"
        "Image.new('RGB', (4, 4), 'red').save(out / 'mixing.png')\n"
        "assert logger().pictures(folder, 'mixing', {'inspect/mixing': out / 'mixing.png'}).startswith('Trackio: 1 ')\n"
        "runs = sqlite3.connect(next((out / 'board').glob('*.db'))).execute('select distinct run_name from metrics')\n"
        "assert [name for (name,) in runs] == [folder.name]\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
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

    requested: list[str] = []

    class Watched:
        resumes = True
        path = tmp_path

        @property
        def metrics(self) -> Any:
            requested.append(threading.current_thread().name)
            return type("Table", (), {"last_step": 7})

    logger, folder = TensorBoard(), Watched()
    logger.prepare(folder)
    assert logger._purge == 8
    other = threading.Thread(target=lambda: pytest.importorskip("tensorboard") and logger.start(folder, {}))
    other.start()
    other.join()
    assert requested == [threading.main_thread().name]
