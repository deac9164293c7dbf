"""Whatever a logger or its service does, the run ends as with `logger=none`: the same bits, soon, and in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from blockyard.runs.folder import RunFolder
from tests.battery.cases import battery, cases
from tests.battery.logger_faults import CASES, Case, unmount
from tests.support.engine_runs import assert_same_bits
from tests.support.logged_training import logged
from tests.support.wandb_server import WandbServer

pytestmark = [battery("loggers"), pytest.mark.xdist_group("battery-loggers")]

# 12 s for the logger, 4 s to abandon it, and what a busy machine adds.
BOUND = 30.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run without a logger."""
    run = logged(tmp_path_factory.mktemp("none"))
    assert run.code == 0, run.printed
    return run.folder


@pytest.fixture
def outputs(tmp_path: Path) -> Iterator[Path]:
    """An empty folder for the run, without mounts afterwards."""
    yield tmp_path
    unmount(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("case", cases(CASES, short=2))
def test_a_logger_that_fails_leaves_the_run_as_it_is(case: Case, outputs: Path, undisturbed: RunFolder) -> None:
    if case.prepare is not None:
        case.prepare(outputs)
    server = WandbServer(case.fault) if case.online else nullcontext()
    with server as serving:
        environment = case.environment | (serving.environment if serving is not None else {})
        run = logged(outputs, *case.overrides, sabotage=case.sabotage, environment=environment)
    assert (run.code, run.folder.status.state) == (0, "done"), run.printed
    assert_same_bits(run.folder, undisturbed)
    assert run.waited < BOUND
    assert "Traceback" not in run.printed
    assert "Exception in thread" not in run.printed
    # A logger that a busy machine gives no time is abandoned, which is a line of its own.
    lines = [line for line in run.lines if "is abandoned" not in line]
    assert len(lines) <= 1, run.printed
    assert len(run.lines) <= len(lines) + 1, run.printed
    if case.lines is not None:
        assert bool(run.lines if case.lines else lines) == bool(case.lines), run.printed
