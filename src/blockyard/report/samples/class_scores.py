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

if TYPE_CHECKING:
    from blockyard.runs.predictions_file import SamplePredictions

BINS = 15


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
    """Return V: as recorded, and at least as many as occur."""
    seen = int(max(predictions["top"].max(), predictions["target"].max())) + 1
    recorded = predictions.meta.get("classes")
    return max(seen, recorded) if isinstance(recorded, int) and recorded < 1_000_000 else seen


def confusion(predictions: SamplePredictions, classes: int) -> np.ndarray:
    """Return the counts (V, V) int64: rows are the classes of the targets, columns the predicted ones."""
    target, predicted = _labelled(predictions)
    return np.bincount(target * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_scores(counts: np.ndarray) -> np.ndarray:
    """Return precision, recall, F1 and support (V, 4) of a confusion matrix (V, V); NaN where one is 0 / 0."""
    hits, predicted, support = np.diag(counts), counts.sum(0), counts.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([hits / predicted, hits / support, 2 * hits / (predicted + support), support], axis=1)


def calibration(predictions: SamplePredictions) -> Calibration:
    """Return how well the probability of the predicted class agrees with how often it is right."""
    labelled = predictions["target"] >= 0
    confidence = predictions["probability"][labelled, 0].astype(np.float64)
    right = (predictions["top"][:, 0] == predictions["target"])[labelled]
    # (low, high]: the first bin takes a probability of 0 as well.
    index = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    count = np.bincount(index, minlength=BINS)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(index, weights=values, minlength=BINS) / count for values in (confidence, right)]
    gaps = np.where(count > 0, np.abs(means[1] - means[0]), 0.0)
    ece = float((count * gaps).sum() / count.sum()) if len(confidence) else float("nan")
    return Calibration(count, means[0], means[1], ece)


def _labelled(predictions: SamplePredictions) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and predicted classes of the samples that have a target."""
    labelled = predictions["target"] >= 0
    return predictions["target"][labelled].astype(np.int64), predictions["top"][labelled, 0].astype(np.int64)
