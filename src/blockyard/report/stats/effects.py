"""Main effects and two-way interactions of a grid: ordinary least squares, each seed a block.

    value = mean + seed + factors + pairs of factors + noise

Factors are coded as deviations from their mean (sum coding). An effect compares a level with the first level of
its factor, averaged over all levels of the other factors with equal weight.

Source: Fisher 1935, The Design of Experiments, chap. 6 (factorial design, randomised blocks).
Reference: statsmodels OLS, t_test and f_test
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from blockyard.report.load.document import EffectsRow, InteractionRow, Limits, MainEffectRow
from blockyard.report.stats.paired import Values, diverged_seeds, finite
from blockyard.report.stats.verdict import ArmResult, holm

if TYPE_CHECKING:
    import numpy as np

Levels = Mapping[str, Mapping[str, str]]  # arm -> factor -> level
Test = TypeVar("Test", MainEffectRow, InteractionRow)


@dataclass(frozen=True)
class Design:
    """The design matrix of the regression, and the columns of each term."""

    columns: np.ndarray  # (cells, columns)
    terms: dict[tuple[str, ...], list[int]]  # factor, or pair of factors -> its columns


@dataclass(frozen=True)
class Fit:
    """An ordinary least-squares fit, with what its tests need."""

    coefficients: np.ndarray  # (columns,)
    covariance: np.ndarray | None  # of the coefficients, (columns, columns); None where nothing can be tested
    free: int  # degrees of freedom of the residuals

    def t_test(self, contrast: np.ndarray) -> tuple[Limits | None, float | None]:
        """Return the 95 % interval of a contrast (columns,) of the coefficients, and its two-sided p."""
        from scipy import stats

        if self.covariance is None:
            return None, None
        effect = float(contrast @ self.coefficients)
        error = math.sqrt(contrast @ self.covariance @ contrast)
        half = float(stats.t.ppf(0.975, self.free)) * error
        p = 2.0 * float(stats.t.sf(abs(effect) / error, self.free))
        return (effect - half, effect + half), p

    def f_test(self, columns: list[int]) -> tuple[float | None, float | None]:
        """Return F and p of the hypothesis that the coefficients of these columns are all zero."""
        import numpy as np
        from scipy import stats

        if self.covariance is None:
            return None, None
        tested = self.coefficients[columns]
        covariance = self.covariance[np.ix_(columns, columns)]
        statistic = float(tested @ np.linalg.solve(covariance, tested)) / len(columns)
        return statistic, float(stats.f.sf(statistic, len(columns), self.free))


def least_squares(columns: np.ndarray, target: np.ndarray, inflation: float = 1.0) -> Fit:
    """Return the fit of target (cells,) by columns (cells, columns) of full rank.

    Without degrees of freedom, or with residuals that are rounding errors only, it has no covariance: a p computed
    from them would mean nothing.

    inflation: factor of the covariance
    """
    import numpy as np

    inverse = np.linalg.pinv(columns)  # (columns, cells)
    coefficients = inverse @ target
    free = len(target) - columns.shape[1]
    if free <= 0:
        return Fit(coefficients, None, free)
    residuals = target - columns @ coefficients
    variance = float(residuals @ residuals) / free
    scale = float(abs(target).max()) or 1.0
    if math.sqrt(variance) <= 1e-7 * scale:
        return Fit(coefficients, None, free)
    return Fit(coefficients, inflation * variance * inverse @ inverse.T, free)


def design_matrix(
    rows: Sequence[tuple[Mapping[str, str], int, float]],
    factors: Mapping[str, Sequence[str]],
    pairs: Sequence[tuple[str, str]],
    seeds: Sequence[int],
) -> Design:
    """Return the design of a regression: a block for each seed, factors in sum coding, and their products.

    rows: the levels, the seed and the value of each cell
    """
    import numpy as np

    columns: list[list[float]] = [[1.0] * len(rows)]
    columns += [_coded([row[1] for row in rows], seeds, number) for number in range(len(seeds) - 1)]
    terms: dict[tuple[str, ...], list[int]] = {}
    for factor, of in factors.items():
        coded = [_coded([row[0][factor] for row in rows], of, number) for number in range(len(of) - 1)]
        terms[(factor,)] = list(range(len(columns), len(columns) + len(coded)))
        columns += coded
    for first, second in pairs:
        products: list[list[float]] = []
        for i, j in itertools.product(terms[(first,)], terms[(second,)]):
            products.append([a * b for a, b in zip(columns[i], columns[j], strict=True)])
        terms[(first, second)] = list(range(len(columns), len(columns) + len(products)))
        columns += products
    return Design(np.asarray(columns).T, terms)  # (cells, columns)


def _coded(values: Sequence[Any], levels: Sequence[Any], number: int) -> list[float]:
    """Sum coding: 1 at level `number`, -1 at the last level, else 0."""
    codes = {levels[-1]: -1.0, levels[number]: 1.0}
    return [codes.get(value, 0.0) for value in values]


def factors_of(levels: Levels) -> dict[str, list[str]]:
    """Return every factor with its levels, in the order of the arms."""
    factors: dict[str, dict[str, None]] = {}
    for arm_levels in levels.values():
        for factor, level in arm_levels.items():
            factors.setdefault(factor, {})[level] = None
    return {factor: list(of) for factor, of in factors.items()}


def is_grid(levels: Levels) -> bool:
    """Return whether two factors or more vary, every arm has a level of each, and no two arms have the same levels."""
    factors = {factor: of for factor, of in factors_of(levels).items() if len(of) > 1}
    points = {tuple(arm_levels.get(factor) for factor in factors) for arm_levels in levels.values()}
    return len(factors) > 1 and len(points) == len(levels) and not any(None in point for point in points)


def grid_effects(values: Values, levels: Levels, inflation: float = 1.0) -> EffectsRow | None:
    """Return main effects and interactions of a grid as plain data; None where there are too few values.

    values: arm -> seed -> value of the metric; levels: arm -> factor -> level
    inflation: of variances, where seeds have overlapping splits (`resplit`)
    """
    import numpy as np

    factors = {factor: of for factor, of in factors_of(levels).items() if len(of) > 1}
    rows = []
    for arm, by_seed in values.items():
        if arm in levels:
            rows += [(levels[arm], seed, value) for seed, value in finite(by_seed).items()]
    seeds = sorted({seed for _, seed, _ in rows})
    if not rows or not factors:
        return None
    lost = sum(len(diverged_seeds(values[arm])) for arm in levels if arm in values)
    pairs = list(itertools.combinations(factors, 2))
    design = design_matrix(rows, factors, pairs, seeds)
    # Without full rank an effect is not identified: the least squares have many solutions.
    if np.linalg.matrix_rank(design.columns) < design.columns.shape[1]:
        pairs = []  # cells are missing: not every pair of levels occurs
        design = design_matrix(rows, factors, pairs, seeds)
        if np.linalg.matrix_rank(design.columns) < design.columns.shape[1]:
            return None
    target = np.asarray([value for _, _, value in rows])
    fit = least_squares(design.columns, target, inflation)
    if lost:
        fit = replace(fit, covariance=None)
    means = _means(rows)
    main = []
    for factor, of in factors.items():
        for level in range(1, len(of)):
            main.append(_effect(fit, design, factor, of, level))
    interactions = [_interaction(fit, design, pair, factors, means) for pair in pairs]
    terms = ["seed", *factors, *(f"{a}:{b}" for a, b in pairs)]
    note = ""
    if lost:
        runs = "1 run" if lost == 1 else f"{lost} runs"
        note = f" (not tested: {runs} ended with a loss that is not finite, and the effects are those of the others)"
    elif fit.free <= 0:
        note = " (no degrees of freedom left for tests)"
    if len(factors) > 1 and not pairs:
        note += " (interactions left out: cells are missing)"
    return EffectsRow(
        main=_corrected(main),
        interactions=_corrected(interactions),
        formula=f"value ~ {' + '.join(terms)}{note}",
    )


def single_factor_effects(results: Mapping[str, ArmResult], levels: Levels, baseline: str) -> EffectsRow | None:
    """Return the effects of a one-at-a-time sweep: each arm's difference to the baseline, by the level it changes."""
    main: list[MainEffectRow] = []
    for arm, result in results.items():
        changed = {f: level for f, level in levels.get(arm, {}).items() if level != levels.get(baseline, {}).get(f)}
        if result.difference is None or len(changed) != 1:
            continue
        ((factor, level),) = changed.items()
        effect = MainEffectRow(
            factor=factor,
            level=level,
            reference=levels[baseline].get(factor),
            effect=result.difference.mean,
            interval=result.difference.interval,
            p=result.difference.p,
            holm_p=result.difference.holm_p,
        )
        main.append(effect)
    if not main:
        return None
    return EffectsRow(main=main, interactions=[], formula="each level against the reference, paired by seed")


def _effect(fit: Fit, design: Design, factor: str, of: Sequence[str], level: int) -> MainEffectRow:
    import numpy as np

    # The level's coefficient minus that of the first; the last level's coefficient is minus the sum of the others.
    contrast = np.zeros(design.columns.shape[1])
    columns = design.terms[(factor,)]
    contrast[columns[0]] -= 1.0
    if level < len(of) - 1:
        contrast[columns[level]] += 1.0
    else:
        contrast[columns] -= 1.0
    effect = float(contrast @ fit.coefficients)
    interval, p = fit.t_test(contrast)
    return MainEffectRow(
        factor=factor, level=of[level], reference=of[0], effect=effect, interval=interval, p=p, holm_p=None
    )


def _interaction(
    fit: Fit,
    design: Design,
    pair: tuple[str, str],
    factors: Mapping[str, Sequence[str]],
    means: Mapping[tuple[str, str, str, str], float],
) -> InteractionRow:
    first, second = pair
    statistic, p = fit.f_test(design.terms[pair])
    return InteractionRow(
        factors=[first, second],
        F=statistic,
        p=p,
        holm_p=None,
        cells=[[means.get((first, a, second, b)) for b in factors[second]] for a in factors[first]],
        levels=[list(factors[first]), list(factors[second])],
    )


def _means(rows: Sequence[tuple[Mapping[str, str], int, float]]) -> dict[tuple[str, str, str, str], float]:
    """Return the mean value at each pair of levels of two factors."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for levels, _, value in rows:
        for (a, at_a), (b, at_b) in itertools.combinations(levels.items(), 2):
            values.setdefault((a, at_a, b, at_b), []).append(value)
            values.setdefault((b, at_b, a, at_a), []).append(value)
    return {key: math.fsum(cell) / len(cell) for key, cell in values.items()}


def _corrected(tests: Sequence[Test]) -> list[Test]:
    """Return the tests with Holm's p, corrected over all that have a p."""
    ps = {index: test.p for index, test in enumerate(tests) if test.p is not None and math.isfinite(test.p)}
    holm_ps = dict(zip(ps, holm(list(ps.values())), strict=True))
    return [replace(test, holm_p=holm_ps.get(index)) for index, test in enumerate(tests)]
