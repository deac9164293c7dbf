"""Prints what a finished run reached and what it cost."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING

from blockyard.atomic_files import read_json
from blockyard.errors import printable
from blockyard.evaluate.extrapolation_files import TEST, table

if TYPE_CHECKING:
    from blockyard.runs.folder import RunFolder


def print_result(folder: RunFolder) -> None:
    """Print the metrics of a finished run, what it cost, and its folder."""
    summary = folder.summary()
    metrics = "  ".join(f"{name} {value:.4g}" for name, value in summary["metrics"].items() if "@" not in name)
    lengths = re.compile(r"@\d+x$")  # those of longer sequences are in a table of their own
    slices = [
        f"{name} {value:.4g}"
        for name, value in summary["metrics"].items()
        if name.startswith("test/") and "@" in name and not lengths.search(name)
    ]
    sys.stdout.write(f"done in {summary['seconds']:.1f} s, {summary['steps']} steps, weights of {summary['weights']}\n")
    if "refused" in summary:  # evaluated on longer sequences too
        sys.stdout.write(table(read_json(folder.path / TEST)))
    sys.stdout.write(f"{metrics}\n")
    sys.stdout.write(f"{'  '.join(slices)}\n" if slices else "")
    for name, values in summary.get("baselines", {}).items():
        text = "  ".join(
            f"test/{metric} {math.nan if value is None else value:.4g}" for metric, value in values.items()
        )
        note = summary.get("baseline_notes", {}).get(name)
        sys.stdout.write(f"baseline {name}: {text}{f' ({note})' if note else ''}\n")
    for name, reason in summary.get("baselines_missing", {}).items():
        sys.stdout.write(f"baseline {name}: no value ({printable(str(reason))})\n")
    sys.stdout.write(f"{printable(str(folder.path))}\n")
