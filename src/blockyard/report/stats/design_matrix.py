"""The design matrix of a grid: a block for each seed, factors in sum coding, and their products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Design:
    """The design matrix of the regression, and the columns of each term."""

    columns: np.ndarray  # (cells, columns)
    terms: dict[tuple[str, ...], list[int]]  # factor, or pair of factors -> its columns


def design_matrix(
    rows: Sequence[tuple[Mapping[str, str], int, float]],
    factors: Mapping[str, Sequence[str]],
    pairs: Sequence[tuple[str, str]],
    seeds: Sequence[int],
) -> Design:
    """Return the design of a regression. rows: the levels, the seed and the value of each cell."""
    import numpy as np

    columns: list[list[float]] = [[1.0] * len(rows)]
    columns += [_coded([row[1] for row in rows], seeds, number) for number in range(len(seeds) - 1)]
    terms: dict[tuple[str, ...], list[int]] = {}
    for factor, of in factors.items():
        coded = [_coded([row[0][factor] for row in rows], of, number) for number in range(len(of) - 1)]
        terms[(factor,)] = list(range(len(columns), len(columns) + len(coded)))
        columns += coded
    for first, second in pairs:
        products = [
            [a * b for a, b in zip(columns[i], columns[j], strict=True)]
            for i in terms[(first,)]
            for j in terms[(second,)]
        ]
        terms[(first, second)] = list(range(len(columns), len(columns) + len(products)))
        columns += products
    return Design(np.asarray(columns).T, terms)  # (cells, columns)


def _coded(values: Sequence[Any], levels: Sequence[Any], number: int) -> list[float]:
    """Sum coding: 1 at level `number`, -1 at the last level, else 0."""
    return [1.0 if value == levels[number] else -1.0 if value == levels[-1] else 0.0 for value in values]
