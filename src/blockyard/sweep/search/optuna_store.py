"""Optuna as a search uses it: one SQLite file beside the runs, one study for each arm.

Source: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization (NeurIPS 24), for TPE;
Jamieson and Talwalkar 2016 (arXiv 1502.07943) and Li et al. 2018 (arXiv 1810.05934) for halving.

A suggestion is a function of the trials before it and of its number, so that it does not matter
which process asks, or how often the search was stopped. With `random` it is a function of its
number alone: every arm tries the same settings.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.errors import UserError
from blockyard.runs.lock import held

if TYPE_CHECKING:
    import optuna

FILE = "search.db"
QUESTION = "question"  # what a study was made for: metric, space, pruner, the arm's identity
PRUNERS = ("none", "median", "halving")
SAMPLERS = ("random", "tpe")
_WAIT = 60.0  # seconds that SQLite waits for another process's write
_FULL = 4  # trials run to the end before the median says anything
_DRAWN = 4  # trials at random before TPE says anything; Optuna's own 10 would leave nothing of a small budget
_ASIDE = " until "


def storage(url: str) -> optuna.storages.RDBStorage:
    """The record at an Optuna address, made where there is none."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": {"timeout": _WAIT}})


def address(folder: Path) -> str:
    """The Optuna address of the record in a sweep's folder."""
    return f"sqlite:///{folder.absolute() / FILE}"


def make_pruner(kind: str) -> optuna.pruners.BasePruner:
    """none; median: worse than half of the full trials so far; halving: not of the better half at 1, 2, 4, ..."""
    import optuna

    if kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_FULL)
    if kind == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2)
    return optuna.pruners.NopPruner()


def make_sampler(kind: str, number: int) -> optuna.samplers.BaseSampler:
    """The sampler of trial `number`."""
    import numpy
    import optuna

    seed = int(numpy.random.SeedSequence(number).generate_state(1)[0])  # first draws of small seeds are alike
    if kind == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that Optuna calls experimental
        # Trials that other processes are at count as bad ones, so that nobody repeats them.
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=_DRAWN, constant_liar=True)


def distributions(space: dict[str, Any]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Optuna's words for `space`: a list of choices, or {low, high, log, int, step}, per key."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for key, of in space.items():
        if not isinstance(of, dict):
            found[key] = CategoricalDistribution([stored(choice) for choice in of])
        elif of.get("int"):
            found[key] = IntDistribution(of["low"], of["high"], log=bool(of.get("log")), step=of.get("step") or 1)
        else:
            low, high = float(of["low"]), float(of["high"])
            log = bool(of.get("log"))
            found[key] = FloatDistribution(low, high, log=log, step=None if log else of.get("step"))
    return found


def stored(choice: Any) -> Any:
    """A choice as Optuna keeps it: lists and mappings as text."""
    return choice if choice is None or isinstance(choice, bool | int | float | str) else repr(choice)


def setting_of(params: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    """A trial's parameters as values of a config; numbers to six digits, so that they can be typed."""
    return {key: _value(params[key], of) for key, of in space.items()}


def _value(found: Any, of: Any) -> Any:
    if not isinstance(of, dict):
        return next(choice for choice in of if stored(choice) == found and isinstance(found, type(stored(choice))))
    return found if of.get("int") else min(max(float(f"{found:.6g}"), float(of["low"])), float(of["high"]))


def study_of(folder: Path, arm: str, asked: dict[str, Any], direction: str) -> optuna.Study:
    """The study of an arm, made where there is none. Call it inside `alone`.

    asked: what is searched; `question`. A study of another question under this name is kept, as
    "<arm> until <number>". Raises UserError while somebody works on it.
    """
    import optuna

    kept = storage(address(folder))
    try:
        study = optuna.load_study(study_name=arm, storage=kept)
    except KeyError:
        return _new(arm, kept, asked, direction)
    known = study.user_attrs.get(QUESTION) or {}
    if {**known, "pruner": None} != {**asked, "pruner": None}:
        if any(_worked_on(folder, trial) for trial in study.get_trials(deepcopy=False)):
            raise UserError(
                f"another process searches {arm} in {folder} with another space, metric or arm; wait for it, or stop it"
            )
        before = [s for s in optuna.get_all_study_names(kept) if s.startswith(f"{arm}{_ASIDE}")]
        optuna.copy_study(
            from_study_name=arm, from_storage=kept, to_storage=kept, to_study_name=f"{arm}{_ASIDE}{len(before) + 1}"
        )
        optuna.delete_study(study_name=arm, storage=kept)
        return _new(arm, kept, asked, direction)
    if known != asked:
        study.set_user_attr(QUESTION, asked)
    return study


def _new(arm: str, kept: Any, asked: dict[str, Any], direction: str) -> optuna.Study:
    import optuna

    study = optuna.create_study(
        study_name=arm, storage=kept, direction={"max": "maximize", "min": "minimize"}[direction]
    )
    study.set_user_attr(QUESTION, asked)
    return study


def _worked_on(folder: Path, trial: optuna.trial.FrozenTrial) -> bool:
    return not trial.state.is_finished() and held(folder / str(trial.user_attrs.get("owner")))


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """No two processes count and ask at the same time; for moments only."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".search.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def target(metric: str | None, config: dict[str, Any], allow: list[str]) -> tuple[str, str]:
    """The metric on validation that stands for a sweep's, and "max" or "min".

    metric: the sweep's, which is reported on test, `@4x` behind it where the config judges rows of that length;
    None is the objective's own. Raises UserError where runs of this config have no such metric.
    """
    from types import SimpleNamespace

    from blockyard.config.build import instantiate

    made = instantiate(config["objective"], allow)
    name, mode = made.best()
    wanted = name if metric is None else metric.removeprefix("test/").removeprefix("val/")
    plain, at, length = wanted.partition("@")
    lengths = [f"{factor}x" for factor in sorted({1, *asked})] if (asked := _extrapolated(config)) else []
    known = made.metrics(SimpleNamespace(bytes_per_token=1.0))
    better = getattr(known.get(plain), "higher_is_better", None)
    if plain == name:
        better = mode == "max"
    if better is None or (at and length not in lengths):
        there = [f"test/{word}{longer}" for word in sorted(known) for longer in ("", *(f"@{x}" for x in lengths))]
        hint = "; longer rows are judged with base: [trainer.extrapolate=[2,4]]" if at and not lengths else ""
        raise UserError(f"metric: {metric} is not measured on validation and test; there is {', '.join(there)}{hint}")
    return f"val/{wanted}", "max" if better else "min"


def _extrapolated(config: dict[str, Any]) -> list[int]:
    """Lengths of rows, as multiples of training's, at which runs of a config are judged."""
    return list((config.get("trainer") or {}).get("extrapolate") or [])


def number_or_none(value: float | None) -> float | None:
    """A finite number, or None: what JSON can hold."""
    return value if value is not None and math.isfinite(value) else None
