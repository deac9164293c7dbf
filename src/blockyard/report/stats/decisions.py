"""Decision accuracy: how often a small rung of a ladder orders two arms as the largest rung does.

Of the pairs of arms, the share whose difference has at a rung the sign that it has at the largest one. Pairs that the
seeds tell apart at the largest rung are counted again by themselves: the sign of the others there is that of noise.

Source: Magnusson et al. 2025, DataDecide (arXiv 2504.11393), for the name and the share of pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from blockyard.report.stats.intervals import t_interval
from blockyard.report.stats.verdict import MIN_SEEDS

Pair = tuple[str, str]


class Decisions(NamedTuple):
    """The pairs of arms that a rung shares with the largest one.

    pairs, kept: their number, and how many have the same sign; decided, decided_kept: of the pairs that are told apart
    """

    pairs: int
    kept: int
    decided: int
    decided_kept: int


def decision_accuracy(gaps: Sequence[Mapping[Pair, float]], decided: Collection[Pair]) -> list[Decisions]:
    """Return the decisions of every rung but the largest.

    gaps: pair -> difference of the means, of each rung, the smallest one first
    decided: the pairs that the seeds tell apart at the largest rung

    A pair that is level at the largest rung has no sign to keep and does not count. One that is level at a smaller rung
    does, as not kept.
    """
    *smaller, largest = gaps
    counts = []
    for rung in smaller:
        pairs = {pair for pair, gap in largest.items() if gap != 0 and pair in rung}
        kept = {pair for pair in pairs if rung[pair] * largest[pair] > 0}
        told_apart_pairs = pairs.intersection(decided)
        counts.append(Decisions(len(pairs), len(kept), len(told_apart_pairs), len(told_apart_pairs & kept)))
    return counts


def pair_gaps(values: Mapping[str, Mapping[Any, float]]) -> dict[Pair, list[float]]:
    """Return the differences of every pair of arms over its common seeds. values: arm -> seed -> finite value"""
    gaps = {}
    for first, second in itertools.combinations(values, 2):
        seeds = sorted(values[first].keys() & values[second].keys())
        if seeds:
            gaps[first, second] = [values[first][seed] - values[second][seed] for seed in seeds]
    return gaps


def told_apart(gaps: Mapping[Pair, Sequence[float]]) -> set[Pair]:
    """Return the pairs whose 95 % interval over seeds leaves 0 out."""
    import numpy as np

    pairs = set()
    for pair, differences in gaps.items():
        if len(differences) < MIN_SEEDS:
            continue
        low, high = t_interval(np.asarray(differences))
        if low > 0 or high < 0:
            pairs.add(pair)
    return pairs


def mean_gaps(gaps: Mapping[Pair, Sequence[float]]) -> dict[Pair, float]:
    """Return the mean difference of every pair."""
    return {pair: math.fsum(differences) / len(differences) for pair, differences in gaps.items()}
