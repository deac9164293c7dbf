"""Selections of a product of choices; the rest of the product is marked `full`, which `make test-all` runs.

`in_pairs`: each two values meet; `each_once`: each value occurs, where another test has the pairs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import combinations
from typing import Any

import pytest


def in_pairs(cases: Sequence[tuple[Hashable, ...]]) -> list[Any]:
    """The cases as parameters, all but a small selection marked `full`.

    Each two values of two columns that meet in any case meet in the selection: cases with many new pairs are taken
    first, those with a single one last.
    """
    return _covering(cases, 2)


def each_once(cases: Sequence[tuple[Hashable, ...]]) -> list[Any]:
    """As `in_pairs`, of a smaller selection: each value of each column occurs in it."""
    return _covering(cases, 1)


def _covering(cases: Sequence[tuple[Hashable, ...]], strength: int) -> list[Any]:
    held = {case: set(combinations(enumerate(case), strength)) for case in cases}
    missing, selected = set().union(*held.values()), set()
    for least in range(max(map(len, held.values())), 0, -1):
        for case, its in held.items():
            if len(its & missing) >= least:
                selected.add(case)
                missing -= its
    return [case if case in selected else pytest.param(*case, marks=pytest.mark.full) for case in cases]
