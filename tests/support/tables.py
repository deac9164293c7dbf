"""Small tables on disk."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows as CSV, or as TSV where the name says so, and return the path."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(
            file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_pictures(folder: Path, count: int) -> Path:
    """Write images of two classes, dark ones and bright ones, and pictures.csv with file, label and title of each."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(count):
        bright = number % 2
        pixels = torch.randint(120 * bright, 120 * bright + 120, (10, 12, 3), dtype=torch.uint8, generator=generator)
        Image.fromarray(pixels.numpy()).save(folder / f"{number}.png")
        rows.append({"file": f"{number}.png", "label": ("dark", "bright")[bright], "title": f"picture {number}"})
    return write_rows(folder / "pictures.csv", rows)
