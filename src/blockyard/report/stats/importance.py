"""The importance of options: the share of the differences between results that each option explains alone.

Of the trials of a search it is the share of the variance of a random forest's predictions, by Optuna's functional
ANOVA; of a full grid it is the share of the sums of squares of the means, which needs no model. What is missing to 1
is noise, and the options acting together.

Source: Hutter, Hoos, Leyton-Brown 2014, An Efficient Approach for Assessing Hyperparameter Importance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blockyard.report.stats.effects import Levels, factors_of
from blockyard.sweep.cell.trial_store import distributions, storable
from blockyard.sweep.spec.keys import Space

MIN_TRIALS = 8  # of fewer, a forest sees too little to be tested on the trials that a tree has not seen
# Of results that follow from no option, few are fitted better than this: at most one search in eight, see the tests.
MIN_FIT = 0.1
TREES = 64


class Importance(NamedTuple):
    """Option -> the share that it explains, largest first.

    fit: the coefficient of determination on the trials that a tree has not seen; below MIN_FIT there are no shares
    """

    shares: dict[str, float]
    fit: float


def search_importance(
    settings: Sequence[Mapping[str, Any]], values: Sequence[float], space: Space
) -> Importance | None:
    """Return the importance of the searched options; None for fewer than two that vary, and for few trials."""
    keys = []
    for key in space:
        values_of_key = {repr(setting.get(key)) for setting in settings}
        if len(values_of_key) > 1:
            keys.append(key)
    if len(keys) < 2 or len(values) < MIN_TRIALS:
        return None
    fit = _fit(settings, values, {key: space[key] for key in keys})
    if fit < MIN_FIT:
        return Importance({}, fit)
    import optuna

    within = distributions({key: space[key] for key in keys})
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(storage=optuna.storages.InMemoryStorage())
    for setting, value in zip(settings, values, strict=True):
        params = {key: storable(setting[key]) for key in keys}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=within, value=value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=TREES, seed=0)
    return Importance(_sorted(evaluator.evaluate(study)), fit)


def _fit(settings: Sequence[Mapping[str, Any]], values: Sequence[float], space: Space) -> float:
    """Return the coefficient of determination of a forest on the trials that each of its trees has not seen."""
    import warnings

    from sklearn.ensemble import RandomForestRegressor

    columns = []
    for key, dimension in space.items():
        column = [setting[key] for setting in settings]
        if not isinstance(dimension, dict):
            choices = list(map(storable, dimension))
            column = [choices.index(storable(choice)) for choice in column]
        columns.append(column)
    rows = list(zip(*columns, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a trial that every tree has seen, of few trials
        forest = RandomForestRegressor(TREES, oob_score=True, random_state=0).fit(rows, values)
    return float(forest.oob_score_)


def grid_importance(means: Mapping[str, float], levels: Levels) -> dict[str, float] | None:
    """Return the share of each factor of a full grid; None for another one, and where all means are equal.

    means: arm -> mean; levels: arm -> factor -> level
    """
    factors = {}
    for factor, of_factor in factors_of({arm: levels[arm] for arm in means}).items():
        if len(of_factor) > 1:
            factors[factor] = of_factor
    points = set()
    for arm in means:
        points.add(tuple(levels[arm].get(factor) for factor in factors))
    size = math.prod(map(len, factors.values()))  # of the full grid
    if len(factors) < 2 or len(means) != size or len(points) != size:
        return None
    middle = math.fsum(means.values()) / len(means)
    total = math.fsum((mean - middle) ** 2 for mean in means.values())
    if total <= 1e-18 * len(means) * middle**2:
        return None
    shares = {}
    for factor, of_factor in factors.items():
        squares = []
        for level in of_factor:
            at_level = [mean for arm, mean in means.items() if levels[arm][factor] == level]
            squares.append(len(at_level) * (math.fsum(at_level) / len(at_level) - middle) ** 2)
        shares[factor] = math.fsum(squares) / total
    return _sorted(shares)


def _sorted(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the shares, the largest first."""
    return {key: float(shares[key]) for key in sorted(shares, key=lambda key: -shares[key])}
