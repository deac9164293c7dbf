"""Predictions of runs that are right on a share of the same samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from blockyard.runs.predictions_file import TEST, SamplePredictions, write_predictions

SAMPLES = 60


def predicted(folder: Path, rate: float, kept: int) -> None:
    """Predictions of a run that is right on the first `rate` of the samples."""
    target = np.arange(SAMPLES, dtype=np.int32) % 4
    right = np.arange(SAMPLES) < round(rate * SAMPLES)
    top = np.stack([np.where(right, target, (target + 1) % 4), (target + 2) % 4], axis=1).astype(np.int32)
    arrays = {
        "sample": np.arange(SAMPLES, dtype=np.int32),
        "target": target,
        "loss": np.where(right, 0.1, 2.0).astype(np.float32),
        "top": top,
        "probability": np.full((SAMPLES, 2), 0.5, np.float32),
    }
    meta = {"part": "test", "of": SAMPLES, "classes": 4}
    write_predictions(folder / TEST, SamplePredictions("classes", {k: v[:kept] for k, v in arrays.items()}, meta))
