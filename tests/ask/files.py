"""Small files of the kinds that `blockyard ask` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.tables import write_rows

ROWS = 80
TOPICS = {"sport": "the team won the game in the last minute", "food": "fry the onions slowly in a little butter"}


def write_texts(folder: Path, count: int = ROWS, topics: int = 2) -> Path:
    """Write texts.tsv, whose texts have a class each."""
    names = list(TOPICS)[:topics]
    rows = []
    for number in range(count):
        topic = names[number % topics]
        rows.append({"id": number, "review": f"{TOPICS[topic]}, number {number}", "kind": topic})
    return write_rows(folder / "texts.tsv", rows)


def write_numbers(folder: Path, *, real: bool = False, test_label: str | None = None) -> Path:
    """Write numbers.csv, whose last column is a class, or a real value.

    test_label: with it a fourth of the rows are the test split, all with this class
    """
    generator = np.random.default_rng(0)
    rows = []
    for number in range(ROWS):
        width, height = generator.random(2).round(3)
        last = width + height if real else ("small", "large")[int(width + height > 1)]
        row = {"number": number, "width": width, "height": height, "note": "a" * (number % 3), "size": last}
        if test_label is not None:
            row["split"] = ("test", "validation", "train", "train")[number % 4]
            row["size"] = test_label if number % 4 == 0 else last
        rows.append(row)
    return write_rows(folder / "numbers.csv", rows)


def write_steps(folder: Path, time: str = "day") -> Path:
    """Write steps.csv, a time series. time: the name of its first column, of dates or, called year, of numbers"""
    times: np.ndarray = np.datetime64("2024-01-01") + np.arange(ROWS)
    if time == "year":
        times = np.arange(1700, 1700 + ROWS)
    rows = [{time: str(moment), "sold": float(number % 7)} for number, moment in enumerate(times)]
    return write_rows(folder / "steps.csv", rows)


def write_translations(folder: Path) -> Path:
    """Write pairs.tsv, texts in two languages."""
    rows = [{"en": f"this is the sentence {n}", "de": f"das war der Satz {n}", "origin": "book"} for n in range(ROWS)]
    return write_rows(folder / "pairs.tsv", rows)


def write_molecules(folder: Path) -> Path:
    """Write graphs.graphs.jsonl."""
    lines = [json.dumps({"atoms": [[6], [8]], "bonds": [[0, 1, 1]], "y": [number]}) for number in range(ROWS)]
    path = folder / "graphs.graphs.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def write_arrays(folder: Path) -> Path:
    """Write images.npz, gray images with a class each."""
    images = np.zeros((ROWS, 6, 6), np.uint8)
    np.savez(folder / "images.npz", x=images, y=np.arange(ROWS) % 2)
    return folder / "images.npz"


def write_series(folder: Path) -> Path:
    """Write series.npz, series with a class each."""
    values = np.zeros((ROWS, 1, 10), np.float32)
    np.savez(folder / "series.npz", X_train=values, y_train=np.arange(ROWS) % 2)
    return folder / "series.npz"


def write_play(folder: Path) -> Path:
    """Write play.txt, running text."""
    (folder / "play.txt").write_text("to be or not to be, that is the question. " * 50, encoding="utf-8")
    return folder / "play.txt"


def write_folder(folder: Path) -> Path:
    """Write pictures/, a folder of images for each class."""
    from PIL import Image

    for number in range(4):
        of_class = folder / "pictures" / "train" / ("dark", "bright")[number % 2]
        of_class.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 255 * (number % 2)).save(of_class / f"{number}.png")
    return folder / "pictures"


Writer = Callable[[Path], Path]
