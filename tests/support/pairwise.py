"""Selections of a product of choices in which each two values meet; the rest of the product is for the full suite."""

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
    pairs = {case: set(combinations(enumerate(case), 2)) for case in cases}
    missing, selected = set().union(*pairs.values()), set()
    for least in range(max(map(len, pairs.values())), 0, -1):
        for case, its in pairs.items():
            if len(its & missing) >= least:
                selected.add(case)
                missing -= its
    return [case if case in selected else pytest.param(*case, marks=pytest.mark.full) for case in cases]
