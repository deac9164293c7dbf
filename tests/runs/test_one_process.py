"""A run folder belongs to one process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import held
from blockyard.runs.start import create_run
from tests.runs.run_folders import run_config
from tests.support.every import every


def _hold(config: dict[str, Any], ready: Any) -> None:
    folder = create_run(config)
    folder.set_status("running", step=3)
    ready.set()
    time.sleep(60)


@pytest.fixture
def other(tmp_path: Path) -> Any:
    """Another process that has the run and is in the middle of it."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_hold, args=(run_config(tmp_path), ready))
    process.start()
    assert ready.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_second_process_is_told_the_first(tmp_path: Path, other: Any) -> None:
    with pytest.raises(UserError, match=rf"in use by process {other.pid}\b"):
        create_run(run_config(tmp_path))
    with pytest.raises(UserError, match="in use"):
        create_run(run_config(tmp_path, force=True))
    path = next(tmp_path.glob("*/s0"))
    assert RunFolder.open(path).status.state == "running"
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    status = RunFolder.open(path).status
    assert (status.state, status.step) == ("interrupted", 3)
    assert str(other.pid) in str(status.reason)
    assert "killed" in str(status.reason)
    with create_run(run_config(tmp_path)) as again:
        assert again.resumes
        assert "interrupted at step 3" in str(again.message)


def test_a_worker_that_outlives_its_run_does_not_hold_it(tmp_path: Path) -> None:
    folder = create_run(run_config(tmp_path))
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    worker.start()
    try:
        assert held(folder.path)
        folder.release()
        assert not held(folder.path)
        create_run(run_config(tmp_path)).release()
    finally:
        worker.kill()
        worker.join()


@pytest.mark.full
def test_of_six_starts_at_once_one_runs(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from blockyard.runs.start import create_run\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n"
        f"    run = create_run({run_config(Path('OUT'))!r} | {{'outputs': sys.argv[1]}})\n"
        "except ValueError as error:\n"
        "    sys.exit('refused' if 'in use' in str(error) else str(error))\n"
        "run.set_status('running'); sys.stdin.readline()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    starts = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], **pipes) for _ in range(6)]
    assert [start.stdout.readline() for start in starts] == ["ready\n"] * 6
    for start in starts:
        start.stdin.write("go\n")
        start.stdin.flush()
    deadline = time.monotonic() + 60
    while sum(start.poll() is not None for start in starts) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    ends = [(start.communicate("done\n", timeout=60)[1], start.returncode) for start in starts]
    assert sorted(code for _, code in ends) == [0, 1, 1, 1, 1, 1], ends
    assert every("refused" in text for text, code in ends if code)
    assert len(list(tmp_path.glob("*/s0"))) == 1
