"""Optuna's storage of a search: one SQLite file in the sweep's folder, one study for each arm."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_from_bytes

from blockyard.atomic_files import TEMPORARY, is_regular
from blockyard.errors import UserError
from blockyard.runs.lock import held

if TYPE_CHECKING:
    import optuna

FILE = "search.db"
OWNER = "search"  # how the name of the lock begins that a searching process holds: search-PID-RANDOM
_SQLITE = "sqlite:///"
QUESTION = "question"  # the attribute with a study's purpose: metric, space, pruner, seed, the arm's identity
_TIMEOUT = 60.0  # seconds that SQLite waits for another process to finish writing
_OLD = " until "  # in the name of a study that was replaced


class StorageFailed(UserError):  # noqa: N818 - it names a state
    """The record of a search cannot be read or written."""


@contextlib.contextmanager
def storage_failures(folder: Path) -> Iterator[None]:
    """Raise StorageFailed for what the database or the disk refuses inside the block."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (
        optuna.exceptions.StorageInternalError,
        sqlalchemy.exc.SQLAlchemyError,
        json.JSONDecodeError,  # of a value in the database
        OSError,
    ) as error:
        cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
        line = (str(cause or error).strip().splitlines() or [type(error).__name__])[0]
        raise StorageFailed(f"the search's record {folder / FILE} cannot be used: {line}") from error


def storage(address: str) -> optuna.storages.RDBStorage:
    """Open the storage at the address that `storage_url` gives, or create it. Raises UserError for another address."""
    path = address.removeprefix(_SQLITE)
    if path == address or Path(path).name != FILE:
        raise UserError(f"{address!r} is not the {FILE} of a sweep's folder")
    return _open(path)


def _open(path: str) -> optuna.storages.RDBStorage:
    import optuna
    from sqlalchemy import URL

    # A folder's name may have any byte: SQLite reads it from a URI of its own, in which every other one is an escape.
    uri = f"file:{quote_from_bytes(os.fsencode(path))}"
    url = URL.create("sqlite", database=uri, query={"uri": "true"}).render_as_string(hide_password=False)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _TIMEOUT}})


def storage_url(folder: Path) -> str:
    """The address of the storage in a sweep's folder: `sqlite:///` and the path as it is."""
    return f"{_SQLITE}{folder.absolute() / FILE}"


def open_study(folder: Path, arm: str, purpose: dict[str, Any], direction: str) -> optuna.Study:
    """Open the study of an arm, or create it. Call it inside `exclusive`.

    purpose: what is searched, see QUESTION. A study with another purpose is kept under the name
    "<arm> until <number>". Raises UserError while another process works on that one.
    """
    import optuna

    if os.path.lexists(folder / FILE):
        _check_file(folder / FILE)
    else:
        _create_file(folder / FILE)
    store = storage(storage_url(folder))
    try:
        study = optuna.load_study(study_name=arm, storage=store)
    except KeyError:
        return _create(arm, store, purpose, direction)
    before = study.user_attrs.get(QUESTION) or {}
    if {**before, "pruner": None} != {**purpose, "pruner": None}:
        if any(_in_progress(folder, trial) for trial in study.get_trials(deepcopy=False)):
            raise UserError(
                f"another process searches {arm} in {folder} with another space, metric or arm; wait for it, or stop it"
            )
        old = [name for name in optuna.get_all_study_names(store) if name.startswith(f"{arm}{_OLD}")]
        name = f"{arm}{_OLD}{len(old) + 1}"
        optuna.copy_study(from_study_name=arm, from_storage=store, to_storage=store, to_study_name=name)
        optuna.delete_study(study_name=arm, storage=store)
        return _create(arm, store, purpose, direction)
    if before != purpose:
        study.set_user_attr(QUESTION, purpose)
    return study


def _check_file(path: Path) -> None:
    """Raise UserError for a storage that is damaged or no file: SQLite would see that in the middle of a search."""
    reason = "it is empty" if is_regular(path) and not path.stat().st_size else "it is not a regular file"
    if is_regular(path) and path.stat().st_size:
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=_TIMEOUT)) as database:
                reason = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.DatabaseError as error:
            reason = str(error)
    if reason != "ok":
        raise UserError(f"{path} is damaged ({reason}); restore it, or move it away to search anew")


def _create_file(path: Path) -> None:
    """Create a storage without studies, as a whole or not at all: a full disk or a kill may end this anywhere."""
    new = path.with_name(TEMPORARY + path.name)
    for leftover in (new, new.with_name(new.name + "-journal")):
        leftover.unlink(missing_ok=True)
    store = _open(str(new))
    store.remove_session()
    store.engine.dispose()
    os.replace(new, path)


def _create(arm: str, store: Any, purpose: dict[str, Any], direction: str) -> optuna.Study:
    import optuna

    study = optuna.create_study(
        study_name=arm, storage=store, direction="maximize" if direction == "max" else "minimize"
    )
    study.set_user_attr(QUESTION, purpose)
    return study


def _in_progress(folder: Path, trial: optuna.trial.FrozenTrial) -> bool:
    return not trial.state.is_finished() and held(folder / str(trial.user_attrs.get("owner")))


def finite_or_none(value: float | None) -> float | None:
    """The number if it is finite, which JSON can hold; otherwise None."""
    return value if value is not None and math.isfinite(value) else None
