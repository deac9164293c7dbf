"""Metrics files of two runs, compared."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest


def assert_equal_metrics(resumed: Path, whole: Path) -> None:
    """Compare the metrics of two runs step by step; seconds differ, and processors add in another order."""
    resumed_rows, whole_rows = (list(csv.DictReader((path / "metrics.csv").open())) for path in (resumed, whole))
    assert [row["step"] for row in resumed_rows] == [row["step"] for row in whole_rows]
    for resumed_row, whole_row in zip(resumed_rows, whole_rows, strict=True):
        for key in {*resumed_row, *whole_row} - {"seconds"}:
            assert (resumed_row[key] == "") == (whole_row[key] == "")
            assert float(resumed_row[key] or 0) == pytest.approx(float(whole_row[key] or 0), rel=1e-3), key
