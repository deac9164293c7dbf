"""The samples to look at: the samples with the highest loss, and the samples that the runs disagree about most.

Source: Freeman 1965, Elementary Applied Statistics, for the variation ratio 1 - (votes of the most frequent class) / n
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from blockyard.runs.predictions_file import SamplePredictions


def worst(runs: Sequence[SamplePredictions], most: int) -> np.ndarray:
    """Return the rows of the samples with the highest mean loss over the runs, the highest first."""
    loss = np.mean([run["loss"] for run in runs], axis=0)
    order = np.lexsort((np.arange(len(loss)), -loss))  # NaN, the samples without a target, are last
    return order[: min(most, int(np.isfinite(loss).sum()))]


def disputed(runs: Sequence[SamplePredictions], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the samples that the runs disagree about most, and the disagreement on each.

    The disagreement on classes is the variation ratio of the predicted classes. The disagreement on values is the
    standard deviation over the runs in standard deviations of the targets, the mean over the values. Samples without
    disagreement are left out.
    """
    if len(runs) < 2:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    measure = _variation(runs) if runs[0].kind == "classes" else _deviation(runs)
    tie = np.mean([run["loss"] for run in runs], axis=0)
    order = np.lexsort((np.arange(len(measure)), -np.nan_to_num(tie), -measure))
    order = order[measure[order] > 0][:most]
    return order, measure[order]


def _variation(runs: Sequence[SamplePredictions]) -> np.ndarray:
    """Return the variation ratio (n,): 1 - the votes of the most frequent class / R."""
    # Sorted, equal votes are neighbours, and the longest stretch of them is the most frequent class.
    votes = np.sort(np.stack([run["top"][:, 0] for run in runs], axis=1), axis=1)  # (n, R)
    longest = current = np.ones(len(votes), dtype=np.int64)
    for column in range(1, votes.shape[1]):
        current = np.where(votes[:, column] == votes[:, column - 1], current + 1, 1)
        longest = np.maximum(longest, current)
    return np.asarray(1 - longest / votes.shape[1])


def _deviation(runs: Sequence[SamplePredictions]) -> np.ndarray:
    """Return the mean deviation over the runs (n,), in standard deviations of the targets."""
    predicted = np.stack([run["prediction"] for run in runs])  # (R, n, V)
    scales = []
    for column in runs[0]["target"].T:
        finite = column[np.isfinite(column)]
        scales.append(np.std(finite) if len(finite) else 0)
    scale = np.array(scales)
    # A constant target has no scale, and its values are compared as they are.
    scaled = predicted.std(axis=0) / np.where(scale > 0, scale, 1)
    return np.asarray(scaled.mean(axis=1))
