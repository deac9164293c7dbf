"""Outcomes of cells whose process died: a run that was done before is done."""

from __future__ import annotations

import io
import logging
import signal
from pathlib import Path

import pytest

from blockyard.runs.folder import RunFolder
from blockyard.sweep.cell.execute import log_to_file
from blockyard.sweep.cells import Task
from blockyard.sweep.executor._outcomes import outcome_of_exit
from tests.report.report_runs import run


@pytest.mark.parametrize(("state", "code"), [(0.9, 0), ("running", -signal.SIGKILL)])
def test_a_process_that_is_killed_after_its_run_was_done(tmp_path: Path, state: float | str, code: int) -> None:
    """As where a baseline takes the process with it: the cell is done, and its figures count."""
    path = run(tmp_path, figure=state)
    task = Task(f"{path.parent.name}/{path.name}", {"outputs": str(tmp_path)})
    assert outcome_of_exit(task, -signal.SIGKILL).code == code
    assert RunFolder.open(path).status.state == ("done" if code == 0 else "interrupted")


def test_a_log_handler_whose_stream_is_closed_does_not_fail_a_cell(tmp_path: Path) -> None:
    """A notebook or an application may have closed what its handler wrote to; the cell writes to its own log."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    stream.close()
    with log_to_file(tmp_path / "log.txt"):
        logging.getLogger().warning("a line of the cell")
    assert "a line of the cell" in (tmp_path / "log.txt").read_text()
    assert handler.stream is stream


def test_a_log_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    """A folder from a stranger may hold one that leads to a file of the user."""
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    (tmp_path / "log.txt").symlink_to(victim)
    with log_to_file(tmp_path / "log.txt"):
        logging.getLogger().warning("a line of the cell")
    assert victim.read_text() == "as it was"
