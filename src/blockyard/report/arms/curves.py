"""Learning curves from metrics.csv, thinned for a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blockyard.report.load.document import CurveRow
from blockyard.report.load.run_record import LoadedRun
from blockyard.runs.metrics import FILE, Row, read_metrics

MAX_POINTS = 200  # of one run
MAX_TOTAL = 40_000  # of all runs together
MIN_POINTS = 20
AXES = ("step", "epoch", "samples", "tokens", "seconds")


def curves(records: list[LoadedRun], flops: Mapping[str, float | None]) -> list[CurveRow]:
    """Return the curve of each run that has one: steps, samples, FLOPs and seconds, and every metric.

    flops: per sample, by arm, for runs that have not recorded it yet
    """
    points = max(MIN_POINTS, min(MAX_POINTS, MAX_TOTAL // max(1, len(records))))
    every = [curve(record, flops.get(record.arm), points) for record in records if record.state != "refused"]
    return [each for each in every if each["step"]]


def curve(record: LoadedRun, flops: float | None = None, points: int = MAX_POINTS) -> CurveRow:
    """Return one run's curve, thinned. A metric that a row does not have is None there."""
    rows = thin(_read_rows(record.path), points)
    per_sample = record.cost.get("flops_per_sample", flops)
    metrics = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in AXES]
    samples = [row.get("samples") for row in rows]
    return {
        "arm": record.arm,
        "seed": record.seed,
        "run": record.run,
        "setting": record.setting,
        "step": [int(row["step"]) for row in rows],
        "samples": samples,
        "flops": [None if per_sample is None or count is None else rounded(per_sample * count) for count in samples],
        "seconds": [row.get("seconds") for row in rows],
        "metrics": {name: [rounded(row.get(name)) for row in rows] for name in metrics},
    }


def thin(rows: list[Row], points: int) -> list[Row]:
    """Return at most `points` rows: the last one, then rows with validation metrics, then the rest, evenly spaced."""
    if len(rows) <= points:
        return rows
    validated = [index for index, row in enumerate(rows) if any(name.startswith("val/") for name in row)]
    kept = set(_evenly_spaced(validated, points)) | {len(rows) - 1}
    rest = [index for index in range(len(rows)) if index not in kept]
    kept |= set(_evenly_spaced(rest, points - len(kept)))
    return [rows[index] for index in sorted(kept)][-points:]


def rounded(value: float | None) -> float | None:
    """Return a value with six significant digits, enough for a plot."""
    return None if value is None else float(f"{value:.6g}")


def _read_rows(folder: Path) -> list[Row]:
    try:
        return read_metrics(folder / FILE)
    except OSError:
        return []


def _evenly_spaced(indices: list[int], count: int) -> list[int]:
    if count <= 0:
        return []
    if len(indices) <= count:
        return indices
    if count == 1:
        return indices[-1:]
    return [indices[round(k * (len(indices) - 1) / (count - 1))] for k in range(count)]
