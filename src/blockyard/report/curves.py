"""Learning curves from metrics.csv, thin enough for a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockyard.report.load.run_record import Record
from blockyard.runs.metrics import FILE
from blockyard.runs.metrics_table import Row, read_metrics

POINTS = 200  # of a run
BUDGET = 40_000  # of all runs together
FEWEST = 20
AXES = ("step", "epoch", "samples", "tokens", "seconds")


def curves(records: list[Record], flops: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """The curve of each run that has one: x in steps, samples, FLOPs and seconds, and every metric.

    flops: per sample, by arm, for runs that do not say it yet
    """
    points = max(FEWEST, min(POINTS, BUDGET // max(1, len(records))))
    found = [curve(record, flops.get(record.arm), points) for record in records if record.state != "refused"]
    return [one for one in found if one["step"]]


def curve(record: Record, flops: float | None = None, points: int = POINTS) -> dict[str, Any]:
    """One run's curve, thinned. A metric that a row does not have is None there."""
    rows = thin(_rows(record.path), points)
    each = record.cost.get("flops_per_sample", flops)
    metrics = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in AXES]
    samples = [row.get("samples") for row in rows]
    return {
        "arm": record.arm,
        "seed": record.seed,
        "run": record.run,
        "setting": record.setting,
        "step": [int(row["step"]) for row in rows],
        "samples": samples,
        "flops": [None if each is None or seen is None else rounded(each * seen) for seen in samples],
        "seconds": [row.get("seconds") for row in rows],
        "metrics": {name: [rounded(row.get(name)) for row in rows] for name in metrics},
    }


def thin(rows: list[Row], points: int) -> list[Row]:
    """At most `points` rows: those with validation figures first, the last one always, the rest evenly."""
    if len(rows) <= points:
        return rows
    judged = [place for place, row in enumerate(rows) if any(name.startswith("val/") for name in row)]
    kept = set(_evenly(judged, points)) | {len(rows) - 1}
    rest = [place for place in range(len(rows)) if place not in kept]
    kept |= set(_evenly(rest, points - len(kept)))
    return [rows[place] for place in sorted(kept)][-points:]


def rounded(value: float | None) -> float | None:
    """Six digits are enough for a picture."""
    return None if value is None else float(f"{value:.6g}")


def _rows(folder: Path) -> list[Row]:
    try:
        return read_metrics(folder / FILE)
    except OSError:
        return []


def _evenly(places: list[int], count: int) -> list[int]:
    if count <= 0:
        return []
    if len(places) <= count:
        return places
    if count == 1:
        return places[-1:]
    return [places[round(number * (len(places) - 1) / (count - 1))] for number in range(count)]
