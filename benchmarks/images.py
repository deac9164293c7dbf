"""Batches of photographs from the disk: data=image_folder and data=webdataset against torchvision's ImageFolder.

    python benchmarks/images.py [--images 640] [--rounds 7] [--workers 2] [--folder FOLDER]

Writes JPEG files of 500 x 375 pixels, the usual size in ImageNet, once in folders and once in tar shards. Each side
reads as many as there are once a round with the same number of worker processes, in batches of 64: random resized crops
of 224 x 224, mirrored half of the time, normalized float32. Peer: torchvision.datasets.ImageFolder and a DataLoader,
with the transforms of torchvision's training recipe. Rounds alternate in one process. CPU time is that of all
processes, which others disturb less than a clock.
The answer is a Markdown table.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

BATCH, SIZE, CLASSES, SHARDS = 64, 224, 10, 4
Pass = Callable[[], Iterable[Any]]


def write_photographs(folder: Path, count: int) -> int:
    """Writes the files and shards; returns their mean size in bytes."""
    import numpy as np
    from PIL import Image

    draws, sizes = np.random.default_rng(0), []
    (folder / "shards").mkdir(parents=True)
    shards = [folder / "shards" / f"train-{n:03}.tar" for n in range(SHARDS)]
    archives = [tarfile.open(shard, "w") for shard in shards]  # noqa: SIM115 - closed below
    for number in range(count):
        coarse = Image.fromarray(draws.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((500, 375))
        noise = draws.integers(-12, 13, (375, 500, 3))
        pixels = (np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)
        stream, label = io.BytesIO(), number % CLASSES
        Image.fromarray(pixels).save(stream, "JPEG", quality=85)
        sizes.append(len(stream.getvalue()))
        place = folder / "train" / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(stream.getvalue())
        for name, content in (("jpg", stream.getvalue()), ("cls", f"class{label}".encode())):
            member = tarfile.TarInfo(f"{number:06}.{name}")
            member.size = len(content)
            archives[number % SHARDS].addfile(member, io.BytesIO(content))
    for archive in archives:
        archive.close()
    return round(statistics.mean(sizes))


def blockyard_pass(data: Any, workers: int, images: int) -> Pass:
    """So many training images, by the loader of a run."""
    from blockyard.engine.loader import BatchDataset, Layout, training_loader
    from blockyard.objective.classify import Classify
    from blockyard.tokenizer.patch import Patch

    train = data.load(Patch()).train
    dataset = BatchDataset(train, Layout(seed=0, samples=len(train), batch_size=BATCH), Classify())
    steps, passes = images // BATCH, iter(range(10**6))

    def read() -> Iterable[Any]:
        start = next(passes) * steps
        loader = training_loader(dataset, start=start, stop=start + steps, workers=workers, pin=False, timeout=600)
        return (batch.inputs for batch in loader)

    return read


def torchvision_pass(folder: Path, workers: int) -> Pass:
    """The same with torchvision alone."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    images = ImageFolder(str(folder / "train"), transform=v2.Compose(steps))
    loader = DataLoader(
        images, BATCH, shuffle=True, drop_last=True, num_workers=workers, prefetch_factor=4 if workers else None
    )
    return lambda: (inputs for inputs, _ in loader)


def rates(read: Pass) -> tuple[float, float]:
    """Images a second, and a CPU second of all processes, of one pass."""
    before, start, count = os.times(), time.perf_counter(), 0
    for inputs in read():
        assert tuple(inputs.shape) == (BATCH, 3, SIZE, SIZE), inputs.shape
        count += len(inputs)
    seconds, after = time.perf_counter() - start, os.times()
    return count / seconds, count / (sum(after[:4]) - sum(before[:4]))


def table(folder: Path, images: int, rounds: int, workers: int) -> None:
    """Print the table."""
    import torch

    from blockyard.data.image_folder import ImageFolder
    from blockyard.data.webdataset import WebDataset

    torch.set_num_threads(1)
    size = write_photographs(folder, images)
    options: dict[str, Any] = {"size": SIZE, "resized_crop": 0.08, "flip": True, "workers": 1}
    options |= {"validation_fraction": 0.01, "test_fraction": 0.01}
    sides = {
        "torchvision ImageFolder": torchvision_pass(folder, workers),
        "data=image_folder": blockyard_pass(ImageFolder(root=str(folder), **options), workers, images),
        "data=webdataset": blockyard_pass(WebDataset(path=str(folder / "shards"), **options), workers, images),
    }
    each: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name in list(sides)[:: 1 if turn % 2 else -1]:
            measured = rates(sides[name])
            each[name] += [measured] if turn else []  # the first round warms the page cache
    print(f"{images:,} images of 500 x 375 pixels, {size:,} bytes each, {workers} workers, {rounds} rounds\n")
    print("| side | images/s | images/CPU s | ratio of images/s | ratio of images/CPU s |\n|---|---|---|---|---|")
    peer = each["torchvision ImageFolder"]
    for name, values in each.items():
        clock, cpu = (statistics.median(value[k] for value in values) for k in (0, 1))
        ratios = [[a[k] / b[k] for a, b in zip(values, peer, strict=True)] for k in (0, 1)]
        spans = [f"{statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for r in ratios]
        print(f"| {name} | {clock:.0f} | {cpu:.0f} | {' | '.join(spans if values is not peer else ['1', '1'])} |")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch) / "photographs"
        table(folder, arguments.images, arguments.rounds, arguments.workers)


if __name__ == "__main__":
    main()
