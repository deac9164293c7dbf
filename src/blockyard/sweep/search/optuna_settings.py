"""Optuna's samplers, pruners and distributions for a search, and config values from its trials.

Source: Bergstra et al. 2011, Algorithms for Hyper-Parameter Optimization (NeurIPS 24), for TPE;
Jamieson and Talwalkar 2016 (arXiv 1502.07943) and Li et al. 2018 (arXiv 1810.05934) for halving.

A suggestion is a function of the earlier trials and of its number, so it does not depend on which
process requests it or on how often the search was stopped. With `random` it is a function of its number
alone: every arm tries the same settings.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna


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


def distributions(space: dict[str, Any]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Optuna's distributions for `space`: a list of choices, or {low, high, log, int, step}, per key."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    result: dict[str, Any] = {}
    for key, dimension in space.items():
        if not isinstance(dimension, dict):
            result[key] = CategoricalDistribution([storable(choice) for choice in dimension])
            continue
        low, high, step, log = dimension["low"], dimension["high"], dimension.get("step"), bool(dimension.get("log"))
        if dimension.get("int"):
            result[key] = IntDistribution(low, high, log=log, step=step or 1)
        else:
            result[key] = FloatDistribution(float(low), float(high), log=log, step=None if log else step)
    return result


def storable(choice: Any) -> Any:
    """A choice as Optuna stores it: lists and mappings become text."""
    return choice if choice is None or isinstance(choice, bool | int | float | str) else repr(choice)


def to_setting(params: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    """A trial's parameters as config values; floats are rounded to six digits, so that they can be typed."""
    return {key: _config_value(params[key], dimension) for key, dimension in space.items()}


def _config_value(value: Any, dimension: Any) -> Any:
    if not isinstance(dimension, dict):
        same_type = (choice for choice in dimension if isinstance(value, type(storable(choice))))
        return next(choice for choice in same_type if storable(choice) == value)
    if dimension.get("int"):
        return value
    return min(max(float(f"{value:.6g}"), float(dimension["low"])), float(dimension["high"]))
