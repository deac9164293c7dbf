"""Synthetic predictions for single test samples, as a comparison has them."""

from __future__ import annotations

from typing import Any

# A PNG of one pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def sample_tables(labels: list[str], kind: str) -> dict[str, Any]:
    """Predictions of two runs an arm for the classes cat, dog and emu, or for a real value."""
    common = {
        "kind": kind,
        "kept": 30,
        "of": 60,
        "left_out": ["old-0a/s1: damaged"],
        "runs": 2 * len(labels),
        "note": None,
    }
    views = {
        "3": {"image": f"data:image/png;base64,{DOT}"},
        "4": {"text": "a line of text"},
        "5": {"lines": [[0.0, 1.0, None, 2.0]]},
    }
    if kind == "values":
        arms = [
            {"arm": label, "runs": 2, "rmse": 0.5, "mae": 0.4, "bias": -0.1, "dots": [[k, k + 0.3] for k in range(9)]}
            for label in labels
        ]
        rows = [
            {"sample": k, "loss": 2.0 - 0.1 * k, "target": [1.5], "answers": {labels[0]: [[0.25], [0.75]]}}
            for k in (3, 4, 5, 6)
        ]
        dispute = [rows[0] | {"disagreement": 0.7, "answers": {label: [[0.25], [0.75]] for label in labels}}]
        return common | {
            "classes": [],
            "arms": arms,
            "views": views,
            "worst": dict.fromkeys(labels, rows),
            "disputed": dispute,
        }
    count = [0] * 15
    count[14], count[9] = 40, 20
    shares: list[float | None] = [None] * 15
    shares[14], shares[9] = 0.9, 0.5
    calibration = {"count": count, "confidence": shares, "accuracy": shares, "ece": 0.0421, "ece_runs": [0.04, 0.0442]}
    arms = [
        {
            "arm": label,
            "runs": 2,
            "confusion": [[16, 4, 0], [2, 18, 0], [0, 6, 14]],
            "confused": [[2, 1, 6], [0, 1, 4]],
            "macro_f1": 0.79,
            "scores": [[0, 0.89, 0.8, 0.84 - 0.01 * k, 10], [1, 0.64, 0.9, 0.75, 1135], [2, None, 0.7, None, 10]],
            "calibration": calibration,
        }
        for k, label in enumerate(labels)
    ]
    rows = [
        {"sample": k, "loss": 2.0 - 0.1 * k, "target": 2, "answers": {labels[0]: [[1, 2, 0.81]]}} for k in (3, 4, 5, 6)
    ]
    dispute = [rows[0] | {"disagreement": 0.5, "answers": {label: [[1, 1, 0.6], [2, 1, 0.55]] for label in labels}}]
    return common | {
        "classes": ["cat", "dog", "emu"],
        "arms": arms,
        "views": views,
        "worst": dict.fromkeys(labels, rows),
        "disputed": dispute,
    }
