"""Arms of the same settings, an A/A comparison: whether this platform repeats a result, and how far it is off.

Such arms differ in `repeat` alone, a number that nothing computes with. With a seed in common they start from the same
weights and read the same data, so that a difference between them is the platform's: kernels that add in another order,
machines that differ.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from blockyard.report.load.arms import ArmRuns, semantic_options
from blockyard.report.load.document import RepeatRow

REPEAT = "repeat"


def repeats(arms: Sequence[ArmRuns], metric: str) -> list[RepeatRow]:
    """Return a row for each group of arms of the same settings that have a seed in common."""
    groups: dict[str, list[ArmRuns]] = {}
    for arm in arms:
        options = semantic_options(arm.config)
        options.pop(REPEAT, None)
        groups.setdefault(repr(sorted(options.items())), []).append(arm)
    result = []
    for group in groups.values():
        row = _row(group, metric)
        if row is not None:
            result.append(row)
    return result


def quiet_sentence(row: RepeatRow, metric: str) -> str:
    """Return whether the platform is quiet, and the differences within a seed beside those between seeds."""
    names = f"{', '.join(row.arms[:-1])} and {row.arms[-1]}, which have the same settings,"
    seeds = "1 seed" if len(row.seeds) == 1 else f"{len(row.seeds)} seeds"
    if row.equal == len(row.seeds):
        return f"This platform is quiet: {names} are equal to the bit in all metrics on {seeds}."
    sentence = f"This platform is not quiet: {names} have "
    if row.within == 0:
        sentence += f"the same {metric}, and other metrics differ"
    else:
        sentence += f"a standard deviation of {row.within:.2g} in {metric} within a seed"
    if row.between is not None:
        sentence += f"; between seeds it is {row.between:.2g}"
    if row.equal:
        sentence += f"; on {row.equal} of {seeds} they are equal to the bit"
    return f"{sentence}."


def _row(arms: Sequence[ArmRuns], metric: str) -> RepeatRow | None:
    if len(arms) < 2:
        return None
    values = [arm.values(metric) for arm in arms]
    seeds = sorted(set.intersection(*(set(of_arm) for of_arm in values)))
    if not seeds:
        return None
    variances = [statistics.variance([of_arm[seed] for of_arm in values]) for seed in seeds]
    first = [values[0][seed] for seed in seeds]
    between = statistics.stdev(first) if len(first) > 1 else None
    metrics = [{run.seed: run.metrics for run in arm.done} for arm in arms]
    equal = 0
    for seed in seeds:
        one, *others = (of_arm[seed] for of_arm in metrics)
        equal += all(other == one for other in others)
    within = math.sqrt(statistics.fmean(variances))
    return RepeatRow(arms=[arm.name for arm in arms], seeds=seeds, equal=equal, within=within, between=between)
