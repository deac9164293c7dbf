"""Main effects and two-way interactions of a grid: ordinary least squares, each seed a block.

    figure = mean + seed + factors + pairs of factors + noise

Factors are coded as deviations from their mean (sum coding), so that an effect is that of a level
against the first level, averaged over all levels of the other factors with equal weight.

Source: Fisher 1935, The Design of Experiments, chap. 6 (factorial design, randomised blocks).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blockyard.report.stats.statistics import Judged, Values, finite
from blockyard.report.stats.verdict import holm

if TYPE_CHECKING:
    import numpy as np

Levels = Mapping[str, Mapping[str, str]]  # arm -> factor -> level


@dataclass(frozen=True)
class _Design:
    """Columns of the regression, and which of them belong to what."""

    columns: np.ndarray  # (cells, columns)
    places: dict[tuple[str, ...], list[int]]  # factor, or pair of factors -> its columns


def factors_of(levels: Levels) -> dict[str, list[str]]:
    """Every factor with its levels in the order of the arms."""
    found: dict[str, dict[str, None]] = {}
    for of in levels.values():
        for factor, level in of.items():
            found.setdefault(factor, {})[level] = None
    return {factor: list(of) for factor, of in found.items()}


def is_grid(levels: Levels) -> bool:
    """Whether every arm has a level of every factor, no two arms the same, and two factors or more vary."""
    factors = {factor: of for factor, of in factors_of(levels).items() if len(of) > 1}
    places = {tuple(of.get(factor) for factor in factors) for of in levels.values()}
    return len(factors) > 1 and len(places) == len(levels) and not any(None in place for place in places)


def of_grid(values: Values, levels: Levels) -> dict[str, Any] | None:
    """Effects of a grid as a comparison holds them; None where there are too few figures for any.

    values: arm -> seed -> figure; levels: arm -> factor -> level
    """
    import numpy as np
    import statsmodels.api as sm

    factors = {factor: of for factor, of in factors_of(levels).items() if len(of) > 1}
    rows = [
        (levels[arm], seed, figure)
        for arm, of in values.items()
        for seed, figure in finite(of).items()
        if arm in levels
    ]
    seeds = sorted({seed for _, seed, _ in rows})
    if not rows or not factors:
        return None
    pairs = list(itertools.combinations(factors, 2))
    design = _design(rows, factors, pairs, seeds)
    if np.linalg.matrix_rank(design.columns) < design.columns.shape[1]:
        pairs = []  # cells are missing: not every pair of levels was seen
        design = _design(rows, factors, pairs, seeds)
        if np.linalg.matrix_rank(design.columns) < design.columns.shape[1]:
            return None
    free = len(rows) - design.columns.shape[1]
    target = np.asarray([figure for _, _, figure in rows])
    fit = sm.OLS(target, design.columns).fit() if free > 0 else None
    plain = np.linalg.lstsq(design.columns, target, rcond=None)[0]
    means = _means(rows)
    main = [
        _effect(fit, plain, design, factor, of, level) for factor, of in factors.items() for level in range(1, len(of))
    ]
    crossed = [_interaction(fit, design, pair, factors, means) for pair in pairs]
    _holm(main)
    _holm(crossed)
    terms = ["seed", *factors, *(f"{a}:{b}" for a, b in pairs)]
    note = "" if fit is not None else " (no figures left over to judge by)"
    if len(factors) > 1 and not pairs:
        note += " (interactions left out: cells are missing)"
    return {"main": main, "interactions": crossed, "formula": f"figure ~ {' + '.join(terms)}{note}"}


def simple(judged: Mapping[str, Judged], levels: Levels, baseline: str) -> dict[str, Any] | None:
    """One factor at a time: each arm's difference to the reference is the effect of its one other level."""
    main = []
    for arm, found in judged.items():
        moved = {f: level for f, level in levels.get(arm, {}).items() if level != levels.get(baseline, {}).get(f)}
        if found.difference is None or len(moved) != 1:
            continue
        ((factor, level),) = moved.items()
        main.append(
            {
                "factor": factor,
                "level": level,
                "reference": levels[baseline].get(factor),
                "effect": found.difference.mean,
                "interval": found.difference.interval,
                "p": found.difference.p,
                "holm_p": found.difference.holm_p,
            }
        )
    if not main:
        return None
    return {"main": main, "interactions": [], "formula": "each level against the reference, paired by seed"}


def _design(
    rows: Sequence[tuple[Mapping[str, str], int, float]],
    factors: Mapping[str, Sequence[str]],
    pairs: Sequence[tuple[str, str]],
    seeds: Sequence[int],
) -> _Design:
    import numpy as np

    columns: list[list[float]] = [[1.0] * len(rows)]
    columns += [_coded([row[1] for row in rows], seeds, number) for number in range(len(seeds) - 1)]
    places: dict[tuple[str, ...], list[int]] = {}
    for factor, of in factors.items():
        made = [_coded([row[0][factor] for row in rows], of, number) for number in range(len(of) - 1)]
        places[(factor,)] = list(range(len(columns), len(columns) + len(made)))
        columns += made
    for first, second in pairs:
        made = [
            [a * b for a, b in zip(columns[i], columns[j], strict=True)]
            for i in places[(first,)]
            for j in places[(second,)]
        ]
        places[(first, second)] = list(range(len(columns), len(columns) + len(made)))
        columns += made
    return _Design(np.asarray(columns).T, places)  # (cells, columns)


def _coded(values: Sequence[Any], levels: Sequence[Any], number: int) -> list[float]:
    """Sum coding: 1 at level `number`, -1 at the last level, else 0."""
    return [1.0 if value == levels[number] else -1.0 if value == levels[-1] else 0.0 for value in values]


def _effect(fit: Any, plain: np.ndarray, design: _Design, factor: str, of: Sequence[str], level: int) -> dict[str, Any]:
    import numpy as np

    # level - first = its coefficient - that of the first; the last level's is minus the sum of all.
    contrast = np.zeros(design.columns.shape[1])
    places = design.places[(factor,)]
    contrast[places[0]] -= 1.0
    if level < len(of) - 1:
        contrast[places[level]] += 1.0
    else:
        contrast[places] -= 1.0
    made: dict[str, Any] = {"factor": factor, "level": of[level], "reference": of[0]}
    made |= {"effect": float(contrast @ plain), "interval": None, "p": None, "holm_p": None}
    if fit is not None and not _exact(fit):
        test = fit.t_test(contrast)
        low, high = test.conf_int()[0]
        made |= {"effect": float(test.effect[0]), "interval": [float(low), float(high)], "p": float(test.pvalue)}
    return made


def _interaction(
    fit: Any,
    design: _Design,
    pair: tuple[str, str],
    factors: Mapping[str, Sequence[str]],
    means: Mapping[tuple[str, str, str, str], float],
) -> dict[str, Any]:
    import numpy as np

    first, second = pair
    made: dict[str, Any] = {"factors": [first, second], "F": None, "p": None, "holm_p": None}
    if fit is not None and not _exact(fit):
        test = fit.f_test(np.eye(design.columns.shape[1])[design.places[pair]])
        made |= {"F": float(test.fvalue), "p": float(test.pvalue)}
    made["cells"] = [[means.get((first, a, second, b)) for b in factors[second]] for a in factors[first]]
    return made | {"levels": [list(factors[first]), list(factors[second])]}


def _exact(fit: Any) -> bool:
    """Whether nothing is left over but rounding: then no p means anything."""
    scale = float(abs(fit.model.endog).max()) or 1.0
    return math.sqrt(float(fit.mse_resid)) <= 1e-7 * scale


def _means(rows: Sequence[tuple[Mapping[str, str], int, float]]) -> dict[tuple[str, str, str, str], float]:
    """The mean figure at each pair of levels of two factors."""
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for levels, _, figure in rows:
        for (a, at_a), (b, at_b) in itertools.combinations(levels.items(), 2):
            found.setdefault((a, at_a, b, at_b), []).append(figure)
            found.setdefault((b, at_b, a, at_a), []).append(figure)
    return {key: math.fsum(figures) / len(figures) for key, figures in found.items()}


def _holm(made: list[dict[str, Any]]) -> None:
    known = [one for one in made if one["p"] is not None and math.isfinite(one["p"])]
    for one, p in zip(known, holm([one["p"] for one in known]), strict=True):
        one["holm_p"] = p
