"""Optuna's storage of a search, and its samplers, pruners and distributions.

The storage is one SQLite file in the sweep's folder, with one study for each arm. A suggestion is a function of the
earlier trials and of its number, so it does not depend on which process requests it or on how often the search was
stopped. With `random` it is a function of its number alone: every arm tries the same settings.

Source: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization (NeurIPS 24), for TPE;
Jamieson and Talwalkar 2016 (arXiv 1502.07943) and Li et al. 2018 (arXiv 1810.05934) for halving.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict
from urllib.parse import quote_from_bytes

from blockyard.atomic_files import TEMPORARY, database_reason, is_regular
from blockyard.errors import UserError, first_line
from blockyard.runs.lock import held
from blockyard.sweep.cells import Setting
from blockyard.sweep.spec.keys import Space

if TYPE_CHECKING:
    import optuna

FILE = "search.db"
QUESTION = "question"  # the attribute with a study's purpose: metric, space, pruner, seed, the arm's identity
PRUNERS = ("none", "median", "halving")
SAMPLERS = ("random", "tpe")
_SQLITE = "sqlite:///"
_TIMEOUT = 60.0  # seconds that SQLite waits for another process to finish writing
_OLD = " until "  # in the name of a study that was replaced
_UNPRUNED = 4  # complete trials before the median pruner starts
_RANDOM = 4  # random trials before TPE starts; Optuna's default of 10 would use up a small budget


class StorageFailedError(UserError):
    """The record of a search cannot be read or written."""


@contextlib.contextmanager
def storage_failures(folder: Path) -> Iterator[None]:
    """Raise StorageFailedError for an error of the database or the disk inside the block."""
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
        line = first_line(cause or error)
        raise StorageFailedError(f"the search's record {folder / FILE} cannot be used: {line}") from error


def storage(address: str) -> optuna.storages.RDBStorage:
    """Open the storage at an address of `storage_url`, or create it. Raises UserError for another address."""
    path = address.removeprefix(_SQLITE)
    if path == address or Path(path).name != FILE:
        raise UserError(f"{address!r} is not the {FILE} of a sweep's folder")
    return _open(path)


def _open(path: str) -> optuna.storages.RDBStorage:
    import optuna
    from sqlalchemy import URL

    # A folder's name may have any byte. SQLite takes it as a URI, in which the special ones are escaped.
    uri = f"file:{quote_from_bytes(os.fsencode(path))}"
    url = URL.create("sqlite", database=uri, query={"uri": "true"}).render_as_string(hide_password=False)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _TIMEOUT}})


def storage_url(folder: Path) -> str:
    """Return the address of the storage in a sweep's folder: `sqlite:///` and the path as it is."""
    return f"{_SQLITE}{folder.absolute() / FILE}"


class SearchPurpose(TypedDict):
    """The purpose of a study. A search of an arm with another purpose is another study.

    seed: of all trials
    identity: of the arm's config
    seeds: the number of seeds for each setting, if not one
    """

    metric: str
    pruner: str
    space: Space
    seed: int
    identity: str
    seeds: NotRequired[int]


def open_study(folder: Path, arm: str, purpose: SearchPurpose, direction: str) -> optuna.Study:
    """Open the study of an arm, or create it. Call it inside `exclusive`.

    A study with another purpose is kept under the name "<arm> until <number>". Raises UserError while another process
    works on it.
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
    # Another pruner changes how many trials run to their end, but not their values.
    if {**before, "pruner": None} != {**purpose, "pruner": None}:
        for trial in study.get_trials(deepcopy=False):
            if not trial.state.is_finished() and held(folder / str(trial.user_attrs.get("owner"))):
                raise UserError(
                    f"another process searches {arm} in {folder} with another space, metric or arm; wait for it, or "
                    "stop it"
                )
        # Optuna cannot rename a study.
        old = [name for name in optuna.get_all_study_names(store) if name.startswith(f"{arm}{_OLD}")]
        name = f"{arm}{_OLD}{len(old) + 1}"
        optuna.copy_study(from_study_name=arm, from_storage=store, to_storage=store, to_study_name=name)
        optuna.delete_study(study_name=arm, storage=store)
        return _create(arm, store, purpose, direction)
    if before != purpose:
        study.set_user_attr(QUESTION, purpose)
    return study


def _check_file(path: Path) -> None:
    """Raise UserError for a storage that is damaged, a link or no file.

    SQLite would see damage in the middle of a search, and write wherever a link leads.
    """
    elsewhere = database_reason(path)
    if elsewhere:
        raise UserError(f"{path} is not opened, since {elsewhere}; move it away to search anew")
    if not is_regular(path):
        reason = "it is not a regular file"
    elif not path.stat().st_size:
        reason = "it is empty"
    else:
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=_TIMEOUT)) as database:
                database.execute("PRAGMA trusted_schema = OFF")  # a stranger's schema could call functions
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


def _create(arm: str, store: Any, purpose: SearchPurpose, direction: str) -> optuna.Study:
    import optuna

    study = optuna.create_study(
        study_name=arm, storage=store, direction="maximize" if direction == "max" else "minimize"
    )
    study.set_user_attr(QUESTION, purpose)
    return study


def finite_or_none(value: float | None) -> float | None:
    """Return the number if it is finite, as JSON needs it; otherwise None."""
    if value is not None and math.isfinite(value):
        return value
    return None


def make_pruner(kind: str) -> optuna.pruners.BasePruner:
    """Return the pruner: none, median (of the complete trials), or halving (keeps the better half at 1, 2, 4, ...)."""
    import optuna

    if kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_UNPRUNED)
    if kind == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    return optuna.pruners.NopPruner()


def make_sampler(kind: str, number: int) -> optuna.samplers.BaseSampler:
    """Return the sampler of trial `number`."""
    import numpy
    import optuna

    seed = int(numpy.random.SeedSequence(number).generate_state(1)[0])  # the first samples of small seeds are alike
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # options that Optuna calls experimental
        # Running trials of other processes count as bad ones, so that the sampler does not repeat them.
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM, constant_liar=True)


def distributions(space: Space) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return Optuna's distributions for `space`: a list of choices, or {low, high, log, int, step}, per key."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    result: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, dimension in space.items():
        if not isinstance(dimension, dict):
            result[key] = CategoricalDistribution([storable(choice) for choice in dimension])
            continue
        low = dimension["low"]
        high = dimension["high"]
        step = dimension.get("step")
        log = bool(dimension.get("log"))
        if dimension.get("int"):
            result[key] = IntDistribution(int(low), int(high), log=log, step=int(step or 1))
        else:
            result[key] = FloatDistribution(float(low), float(high), log=log, step=None if log else step)
    return result


def storable(choice: Any) -> Any:
    """Return a choice as Optuna stores it: lists and mappings become text."""
    if isinstance(choice, bool | int | float | str | None):
        return choice
    return repr(choice)


def to_setting(params: Mapping[str, Any], space: Space) -> Setting:
    """Return a trial's parameters as config values. Floats are rounded to six digits, so that they can be typed."""
    return {key: _config_value(params[key], dimension) for key, dimension in space.items()}


def _config_value(value: Any, dimension: Any) -> Any:
    if not isinstance(dimension, dict):
        # Types first, since 1 == True == 1.0.
        same_type = (choice for choice in dimension if isinstance(value, type(storable(choice))))
        return next(choice for choice in same_type if storable(choice) == value)
    if dimension.get("int"):
        return value
    rounded = float(f"{value:.6g}")
    return min(max(rounded, float(dimension["low"])), float(dimension["high"]))
