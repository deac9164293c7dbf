"""Optuna's storage of a search: one SQLite file in the sweep's folder, one study for each arm."""

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
from blockyard.errors import UserError
from blockyard.runs.lock import held
from blockyard.sweep.cells import Setting
from blockyard.sweep.spec.keys import Space

if TYPE_CHECKING:
    import optuna


FILE = "search.db"
_SQLITE = "sqlite:///"
QUESTION = "question"  # the attribute with a study's purpose: metric, space, pruner, seed, the arm's identity
_TIMEOUT = 60.0  # seconds that SQLite waits for another process to finish writing
_OLD = " until "  # in the name of a study that was replaced


class StorageFailedError(UserError):
    """The record of a search cannot be read or written."""


@contextlib.contextmanager
def storage_failures(folder: Path) -> Iterator[None]:
    """Raise StorageFailedError for what the database or the disk refuses inside the block."""
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
        raise StorageFailedError(f"the search's record {folder / FILE} cannot be used: {line}") from error


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


class SearchPurpose(TypedDict):
    """What a study is for: a search of an arm with another purpose is another study.

    seed: of all trials; identity: of the arm's config; seeds: on how many a setting is tried, where not on one
    """

    metric: str
    pruner: str
    space: Space
    seed: int
    identity: str
    seeds: NotRequired[int]


def open_study(folder: Path, arm: str, purpose: SearchPurpose, direction: str) -> optuna.Study:
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
    """Raise UserError for a storage that is damaged, a link or no file.

    SQLite would see damage in the middle of a search, and write wherever a link leads.
    """
    if elsewhere := database_reason(path):
        raise UserError(f"{path} is not opened, since {elsewhere}; move it away to search anew")
    reason = "it is empty" if is_regular(path) and not path.stat().st_size else "it is not a regular file"
    if is_regular(path) and path.stat().st_size:
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=_TIMEOUT)) as database:
                database.execute("PRAGMA trusted_schema = OFF")
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


def _in_progress(folder: Path, trial: optuna.trial.FrozenTrial) -> bool:
    return not trial.state.is_finished() and held(folder / str(trial.user_attrs.get("owner")))


def finite_or_none(value: float | None) -> float | None:
    """The number if it is finite, which JSON can hold; otherwise None."""
    return value if value is not None and math.isfinite(value) else None


# Optuna's samplers, pruners and distributions for a search, and config values from its trials.
#
# Source: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization (NeurIPS 24), for TPE;
# Jamieson and Talwalkar 2016 (arXiv 1502.07943) and Li et al. 2018 (arXiv 1810.05934) for halving.
#
# A suggestion is a function of the earlier trials and of its number, so it does not depend on which process requests
# it or on how often the search was stopped. With `random` it is a function of its number alone: every arm tries the
# same settings.

PRUNERS = ("none", "median", "halving")
SAMPLERS = ("random", "tpe")
_UNPRUNED = 4  # complete trials before the median pruner starts
_RANDOM = 4  # random trials before TPE starts; Optuna's default of 10 would use up a small budget


def make_pruner(kind: str) -> optuna.pruners.BasePruner:
    """The pruner: none, median (of the complete trials), or halving (keeps the better half at 1, 2, 4, ...)."""
    import optuna

    if kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_UNPRUNED)
    if kind == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    return optuna.pruners.NopPruner()


def make_sampler(kind: str, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of trial `number`."""
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
    """Optuna's distributions for `space`: a list of choices, or {low, high, log, int, step}, per key."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    result: dict[str, optuna.distributions.BaseDistribution] = {}
    for key, dimension in space.items():
        if not isinstance(dimension, dict):
            result[key] = CategoricalDistribution([storable(choice) for choice in dimension])
            continue
        low, high, step, log = dimension["low"], dimension["high"], dimension.get("step"), bool(dimension.get("log"))
        if dimension.get("int"):
            result[key] = IntDistribution(int(low), int(high), log=log, step=int(step or 1))
        else:
            result[key] = FloatDistribution(float(low), float(high), log=log, step=None if log else step)
    return result


def storable(choice: Any) -> Any:
    """A choice as Optuna stores it: lists and mappings become text."""
    return choice if choice is None or isinstance(choice, bool | int | float | str) else repr(choice)


def to_setting(params: Mapping[str, Any], space: Space) -> Setting:
    """A trial's parameters as config values; floats are rounded to six digits, so that they can be typed."""
    return {key: _config_value(params[key], dimension) for key, dimension in space.items()}


def _config_value(value: Any, dimension: Any) -> Any:
    if not isinstance(dimension, dict):
        same_type = (choice for choice in dimension if isinstance(value, type(storable(choice))))
        return next(choice for choice in same_type if storable(choice) == value)
    if dimension.get("int"):
        return value
    return min(max(float(f"{value:.6g}"), float(dimension["low"])), float(dimension["high"]))
