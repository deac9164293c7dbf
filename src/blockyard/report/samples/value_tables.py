"""The figures of one arm that predicts real values: errors, and predicted against true values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from blockyard.runs.predictions_file import SamplePredictions

MAX_DOTS = 300  # of predicted against true values


def value_table(arm: str, runs: list[SamplePredictions]) -> dict[str, Any]:
    """Return the errors in the units of the data, and pairs of true value and mean prediction over the runs."""
    target = runs[0]["target"].astype(np.float64)  # (n, V)
    predicted = np.mean([run["prediction"] for run in runs], axis=0, dtype=np.float64)
    finite = np.isfinite(target)
    errors = [np.where(finite, run["prediction"] - target, np.nan) for run in runs]
    pairs = np.stack([target[finite], predicted[finite]], axis=1)
    step = max(1, -(-len(pairs) // MAX_DOTS))
    return {
        "arm": arm,
        "runs": len(runs),
        "rmse": float(np.mean([np.sqrt(np.nanmean(each**2)) for each in errors])) if finite.any() else None,
        "mae": float(np.mean([np.nanmean(np.abs(each)) for each in errors])) if finite.any() else None,
        "bias": float(np.mean([np.nanmean(each) for each in errors])) if finite.any() else None,
        "dots": pairs[::step].tolist(),
    }
