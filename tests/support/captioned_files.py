"""A small folder of images with captions, the same every time."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import torch

PARTS = ("train", "train", "val", "test")
COLOURS = ("red", "green", "blue")


def picture(number: int, side: int = 10) -> torch.Tensor:
    """A square of one colour on white, brighter from picture to picture: uint8 (side, side, 3)."""
    pixels = torch.full((side, side, 3), 255, dtype=torch.uint8)
    pixels[2:-2, 2:-2] = number
    pixels[2:-2, 2:-2, number % 3] = 255 - number
    return pixels


def record(number: int) -> dict[str, Any]:
    return {
        "file_name": f"pictures/{number}.png",
        "text": f"a {COLOURS[number % 3]} square",
        "split": PARTS[number % 4],
    }


def write_captions(folder: Path, count: int = 48, *, archive: bool = False) -> Path:
    """Write images and metadata.jsonl below `folder`, the images into a .zip for `archive`; return `folder`."""
    from PIL import Image

    (folder / "pictures").mkdir(parents=True)
    names = []
    for number in range(count):
        names.append(record(number)["file_name"])
        Image.fromarray(picture(number).numpy()).save(folder / names[-1])
    if archive:
        with zipfile.ZipFile(folder / "images.zip", "w") as opened:
            for name in names:
                opened.write(folder / name, name)
                (folder / name).unlink()
    lines = [json.dumps(record(number)) for number in range(count)]
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder
