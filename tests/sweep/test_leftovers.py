"""What a killed planner leaves in the sweep's folder is removed; a record that cannot be written is one message."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from blockyard.errors import UserError
from blockyard.runs.lock import RunLock, lock_path
from blockyard.sweep.cell.trial_store import StorageFailedError, open_study, storage_failures
from blockyard.sweep.cells import SEARCH_LOCK
from blockyard.sweep.plan.history import store_plan
from tests.sweep.search_runs import plan


def test_only_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    sweep_plan = plan(tmp_path)
    sweep_plan.folder.mkdir(parents=True)
    dead, alive = (sweep_plan.folder / f"{SEARCH_LOCK}-{number}-abcd" for number in (1, 2))
    (sweep_plan.folder / ".tmp-comparison.json-1-abcd").write_text("{")
    RunLock(dead).acquire().release()  # its process ended without removing it
    lock = RunLock(alive).acquire()
    store_plan(sweep_plan)
    assert {path.name for path in sweep_plan.folder.iterdir()} == {"plan.json", ".search.lock", lock_path(alive).name}
    lock.release()
    store_plan(sweep_plan)
    assert {path.name for path in sweep_plan.folder.iterdir()} == {"plan.json", ".search.lock"}


@pytest.mark.parametrize("kind", ["disk", "database", "wrapped"])
def test_a_record_that_cannot_be_written_is_one_line(tmp_path: Path, kind: str) -> None:
    import optuna
    from sqlalchemy.exc import OperationalError

    full = OperationalError("INSERT", {}, Exception("database or disk is full"))
    error: Exception = full
    if kind == "disk":
        error = OSError(errno.ENOSPC, "No space left on device")
    if kind == "wrapped":
        error = optuna.exceptions.StorageInternalError("An exception is raised during the commit.")
        error.__cause__ = full
    with pytest.raises(StorageFailedError) as caught, storage_failures(tmp_path):
        raise error
    assert "\n" not in str(caught.value)
    assert "search.db cannot be used: " in str(caught.value)
    assert str(caught.value).endswith(("full", "device"))


def test_a_database_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    """A folder from a stranger may hold one that leads to a file of the user."""
    victim = tmp_path / "victim.sqlite"
    (tmp_path / "search.db").symlink_to(victim)
    with pytest.raises(UserError, match="is not opened, since it is a link"):
        open_study(tmp_path, "a", {"metric": "m", "pruner": "none", "space": {}, "seed": 0, "identity": "i"}, "max")
    assert not victim.exists()
