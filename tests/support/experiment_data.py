"""The experiments on the disk, each with data of its kind."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.config.choices import catalog
from tests.support.captioned_files import write_captions
from tests.support.image_files import write_photographs
from tests.support.molecule_files import write_molecules
from tests.support.sound_files import corpus

PARTS = ("train", "val", "test")


def write_mnist(root: Path) -> None:
    """Random images in MNIST's own file format."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    for part, count in (("train", 300), ("t10k", 100)):
        images = torch.randint(256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        labels = (torch.arange(count) % 10).to(torch.uint8)
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.numpy().tobytes())


def own_data(name: str, folder: Path) -> list[str]:
    """Overrides that give an experiment data of its kind; none where its data is embedded and small."""
    text = catalog.choices("experiment")[name].path.read_text()
    if "override /data: mnist" in text:
        write_mnist(folder)
        return [f"data.root={folder}", "data.batch_size=16"]
    if "override /data: cifar10" in text:
        write_photographs(folder)
        return ["data=image_folder", f"data.root={folder}", "data.batch_size=16", "model.depth=2"]
    if "override /data: image_folder_views" in text:
        write_photographs(folder)
        return [f"data.root={folder}", "data.batch_size=16"]
    if "path: data/pairs.tsv" in text:
        pairs = [f"the {n}th word\tdas {n}. Wort\t{PARTS[n % 3]}\n" for n in range(60)]
        (folder / "pairs.tsv").write_text("".join(["en\tde\tsplit\n", *pairs]))
        return [f"data.path={folder / 'pairs.tsv'}", "data.batch_size=8"]
    if "override /data: table" in text:
        rows = [f"{('buy now', 'see you')[n % 2]} {n}\t{n % 2}\n" for n in range(60)]
        (folder / "mail.tsv").write_text("".join(["text\tlabel\n", *rows]))
        return [f"data.path={folder / 'mail.tsv'}", "data.batch_size=8"]
    if "override /data: speech" in text:
        return [f"data.path={corpus(folder)}", "data.batch_size=2"]
    if "override /data: series_file" in text:
        hours = [f"2024-{1 + n // 672:02}-{1 + n // 24 % 28:02} {n % 24:02}:00,{n % 24},{n % 7}\n" for n in range(2400)]
        (folder / "hours.csv").write_text("".join(["date,load,heat\n", *hours]))
        return [f"data.path={folder / 'hours.csv'}", "data.split=[0.6,0.2,0.2]", "data.batch_size=16"]
    if "override /data: dial_numbers" in text:
        return ["data.samples=400"]  # of 13,000, which are played and encoded before the first step
    if "override /data: canvas_drawings" in text:
        return ["data.samples=200", "data.eval_samples=50"]  # which are drawn and encoded before the first step
    if "override /data: molecules" in text:
        return [f"data.path={write_molecules(folder / 'molecules.graphs.jsonl')}", "data.batch_size=8"]
    if "override /data: captions" in text:
        return [f"data.path={write_captions(folder / 'captions')}", "data.batch_size=8"]
    if "override /data: text_file" in text:
        (folder / "input.txt").write_text("To be, or not to be, that is the question.\n" * 200)
        return [f"data.path={folder / 'input.txt'}"]
    return []


def experiments() -> Iterator[Any]:
    """All experiments; one whose data, model and objective earlier ones have is left to the full suite."""
    seen: set[str] = set()
    for name, choice in catalog.choices("experiment").items():
        own = {*re.findall(r"override /(?:data|model|objective): .*", choice.path.read_text())} or {"the defaults"}
        yield pytest.param(name, marks=pytest.mark.full if own <= seen else ())
        seen |= own
