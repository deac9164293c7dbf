"""The results that every engine must find too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.schedulers.sweep_commands import Sweep


@pytest.fixture(scope="session")
def here(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Six cells by processes of this machine."""
    sweep = Sweep(tmp_path_factory.mktemp("here"), "executor=local", "executor.workers=2", seeds=3)
    sweep.run()
    return sweep


@pytest.fixture(autouse=True)
def _planners() -> Iterator[None]:
    """Kill the planners that a failed test leaves."""
    yield
    for process in Sweep.started:
        process.kill()
        process.wait()
    Sweep.started.clear()
