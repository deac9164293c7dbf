"""The tables of one arm that classifies: means over its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blockyard.report.samples.class_scores import calibration, class_count, class_scores, confusion

if TYPE_CHECKING:
    from blockyard.runs.predictions_file import SamplePredictions

MAX_MATRIX = 40  # classes of a confusion matrix; with more, only the most frequent confusions are listed
MAX_CLASSES = 200  # classes in the table of scores, those with the lowest F1
MAX_CONFUSED = 25


def class_table(arm: str, runs: list[SamplePredictions]) -> dict[str, Any]:
    """Return the confusion matrix (counts of all runs), scores of the classes and the calibration of an arm."""
    classes = max(map(class_count, runs))
    counts = [confusion(run, classes) for run in runs]
    total = np.sum(counts, axis=0)
    scores = _mean([class_scores(each) for each in counts])
    shown = np.argsort(np.nan_to_num(scores[:, 2], nan=2.0), kind="stable")[:MAX_CLASSES]
    reliability = [calibration(run) for run in runs]
    every = np.sum([each.count for each in reliability], axis=0)
    return {
        "arm": arm,
        "runs": len(runs),
        "confusion": total.tolist() if classes <= MAX_MATRIX else None,
        "confused": _confused(total),
        "scores": [[int(index), *map(_number, scores[index])] for index in sorted(shown.tolist())],
        "macro_f1": _number(np.nanmean(scores[:, 2])) if np.isfinite(scores[:, 2]).any() else None,
        "calibration": {
            "count": every.tolist(),
            "confidence": _numbers(_pooled(reliability, "confidence", every)),
            "accuracy": _numbers(_pooled(reliability, "accuracy", every)),
            "ece": _number(np.mean([each.ece for each in reliability])),
            "ece_runs": [_number(each.ece) for each in reliability],
        },
    }


def _confused(counts: np.ndarray) -> list[list[int]]:
    """The most frequent confusions: [class, predicted class, how often]."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSED]
    pairs = [(int(row), int(column)) for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True)]
    return [[row, column, int(wrong[row, column])] for row, column in pairs if wrong[row, column]]


def _pooled(reliability: list[Any], name: str, every: np.ndarray) -> np.ndarray:
    """The mean of each bin over the samples of all runs."""
    sums = np.sum([each.count * np.nan_to_num(getattr(each, name)) for each in reliability], axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / every)


def _mean(scores: list[np.ndarray]) -> np.ndarray:
    """The mean over runs (V, 4), without those in which a score is 0 / 0."""
    stack = np.stack(scores)
    finite = np.isfinite(stack)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(finite, stack, 0).sum(0) / finite.sum(0))


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _numbers(values: np.ndarray) -> list[float | None]:
    return [_number(value) for value in values]
