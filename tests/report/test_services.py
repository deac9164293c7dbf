"""Services that show a comparison too: found on the disk, and asked for by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blockyard.commands._signature import functions_of
from blockyard.report import services


def test_a_service_is_a_folder_with_both_of_its_files() -> None:
    folder = Path(services.__file__).parent
    assert services.SERVICES == ("wandb",)
    for service in services.SERVICES:
        assert {"summary_run.py", "workspace.py"} <= {path.name for path in (folder / service).iterdir()}


@pytest.mark.parametrize("message", ["W&B: logged", None])
def test_messages_of_services_reach_the_user(monkeypatch: pytest.MonkeyPatch, message: str | None) -> None:
    monkeypatch.setattr("blockyard.report.wandb.summary_run.mirror", lambda comparison, plan: message)
    anything: Any = None
    assert services.mirror(anything, anything) == ([] if message is None else [message])


def test_the_board_has_a_flag_for_each_service() -> None:
    (board,) = functions_of("board")
    assert {f"--{name}" for name in services.SERVICES} <= {flag.key for flag in board.flags}
