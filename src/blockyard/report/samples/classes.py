"""Scores of a classifier from its predictions: confusion matrix, scores of each class, calibration.

Source: Guo et al. 2017, On Calibration of Modern Neural Networks (arXiv 1706.04599), equation 3, for the expected
    calibration error and the reliability diagram
Reference: sklearn.metrics.confusion_matrix, precision_recall_fscore_support;
    torchmetrics MulticlassCalibrationError with n_bins=15 and norm="l1"
Equation: ECE = sum_b n_b / n |accuracy of bin b - mean confidence of bin b|, over 15 bins of equal width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blockyard.report.load.document import CalibrationRow, ClassTable

if TYPE_CHECKING:
    from blockyard.runs.predictions_file import SamplePredictions

BINS = 15
MAX_MATRIX = 40  # classes of a confusion matrix; with more, only the most frequent confusions are listed
MAX_CLASSES = 200  # classes in the table of scores, those with the lowest F1
MAX_CONFUSED = 25


def class_table(arm: str, runs: list[SamplePredictions]) -> ClassTable:
    """Return the confusion matrix (counts of all runs), the scores of the classes and the calibration of an arm."""
    classes = max(map(class_count, runs))
    counts = [confusion(run, classes) for run in runs]
    total = np.sum(counts, axis=0)
    of_runs = np.stack([class_scores(matrix) for matrix in counts])  # (runs, V, 4)
    finite = np.isfinite(of_runs)
    with np.errstate(invalid="ignore"):  # a score that no run has stays 0 / 0
        scores = np.where(finite, of_runs, 0).sum(0) / finite.sum(0)  # (V, 4)
    f1 = scores[:, 2]
    # Classes without an F1 come last: 2 is above the highest F1.
    shown = np.argsort(np.nan_to_num(f1, nan=2.0), kind="stable")[:MAX_CLASSES]
    rows = []
    for index in sorted(shown.tolist()):
        rows.append([int(index), *map(_number, scores[index])])
    reliability = [calibration(run) for run in runs]
    samples = [bins.count for bins in reliability]
    eces = [bins.ece for bins in reliability]
    return ClassTable(
        arm=arm,
        runs=len(runs),
        confusion=total.tolist() if classes <= MAX_MATRIX else None,
        confused=_confused(total),
        scores=rows,
        macro_f1=_number(np.nanmean(f1)) if np.isfinite(f1).any() else None,
        calibration=CalibrationRow(
            count=np.sum(samples, axis=0).tolist(),
            confidence=_pooled(samples, [bins.confidence for bins in reliability]),
            accuracy=_pooled(samples, [bins.accuracy for bins in reliability]),
            ece=_number(float(np.mean(eces))),
            ece_runs=[_number(ece) for ece in eces],
        ),
    )


@dataclass(frozen=True)
class Calibration:
    """Reliability over BINS bins of the probability of the predicted class, (low, high].

    count: (BINS,) samples; confidence, accuracy: (BINS,) means, NaN in an empty bin; ece: the mean gap
    """

    count: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    ece: float


def class_count(predictions: SamplePredictions) -> int:
    """Return V: the recorded number of classes, and at least as many as occur."""
    seen = int(max(predictions["top"].max(), predictions["target"].max())) + 1
    recorded = predictions.meta.get("classes")
    if isinstance(recorded, int) and recorded < 1_000_000:
        return max(seen, recorded)
    return seen


def confusion(predictions: SamplePredictions, classes: int) -> np.ndarray:
    """Return the counts (V, V) int64: rows are the classes of the targets, columns the predicted ones."""
    labelled = predictions["target"] >= 0
    target = predictions["target"][labelled].astype(np.int64)
    predicted = predictions["top"][labelled, 0].astype(np.int64)
    return np.bincount(target * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_scores(counts: np.ndarray) -> np.ndarray:
    """Return precision, recall, F1 and support (V, 4) of a confusion matrix (V, V); NaN where one is 0 / 0."""
    hits, predicted, support = np.diag(counts), counts.sum(0), counts.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([hits / predicted, hits / support, 2 * hits / (predicted + support), support], axis=1)


def calibration(predictions: SamplePredictions) -> Calibration:
    """Return the reliability of the probability of the predicted class."""
    labelled = predictions["target"] >= 0
    confidence = predictions["probability"][labelled, 0].astype(np.float64)
    right = (predictions["top"][:, 0] == predictions["target"])[labelled]
    # (low, high]: the first bin takes a probability of 0 as well.
    index = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    count = np.bincount(index, minlength=BINS)
    with np.errstate(invalid="ignore"):  # 0 / 0 of an empty bin
        mean_confidence = np.bincount(index, weights=confidence, minlength=BINS) / count
        accuracy = np.bincount(index, weights=right, minlength=BINS) / count
    if not len(confidence):
        return Calibration(count, mean_confidence, accuracy, float("nan"))
    gaps = np.where(count > 0, np.abs(accuracy - mean_confidence), 0.0)
    ece = float((count * gaps).sum() / count.sum())
    return Calibration(count, mean_confidence, accuracy, ece)


def _confused(counts: np.ndarray) -> list[list[int]]:
    """Return the most frequent confusions: [class, predicted class, number of samples]."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSED]
    confused = []
    for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True):
        count = int(wrong[row, column])
        if count:
            confused.append([int(row), int(column), count])
    return confused


def _pooled(counts: list[np.ndarray], means: list[np.ndarray]) -> list[float | None]:
    """Return the mean of each bin over the samples of all runs; None for an empty bin."""
    sums = []
    for count, mean in zip(counts, means, strict=True):
        sums.append(count * np.nan_to_num(mean))
    with np.errstate(invalid="ignore"):
        pooled = np.asarray(np.sum(sums, axis=0) / np.sum(counts, axis=0))
    return [_number(value) for value in pooled]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
