"""Image data sets written for a test."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import torch


def write_images(root: Path, parts: dict[str, int], side: int = 12) -> None:
    """Random images of two classes in two sizes, a folder for each part and class."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for part, count in parts.items():
        for name in ("bee", "ant"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                shape = (side, side + number % 2, 3)
                pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
                Image.fromarray(pixels.numpy()).save(root / part / name / f"{number:03}.png")


def write_photographs(root: Path) -> None:
    """Random 32 x 32 images of cats and dogs, a folder for each part and class."""
    from PIL import Image

    for part, count in (("train", 20), ("test", 5)):
        for name in ("cat", "dog"):
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(256, (32, 32, 3), dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(folder / f"{number:03d}.png")


def write_shard(path: Path, files: Mapping[str, bytes]) -> Path:
    """A tar archive of these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def samples(start: int, count: int, side: int = 12) -> dict[str, bytes]:
    """Pairs of an image and its class for a shard: bright ones of class 1, dark ones of class 0, in two sizes."""
    from PIL import Image

    files = {}
    for number in range(start, start + count):
        generator = torch.Generator().manual_seed(number)
        shape = (side, side + number % 3, 3)
        pixels = torch.randint(0, 128, shape, dtype=torch.uint8, generator=generator) + number % 2 * 100
        stream = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(stream, "PNG")
        files |= {f"photos/{number:04}.png": stream.getvalue(), f"photos/{number:04}.cls": b"%d\n" % (number % 2)}
    return files
