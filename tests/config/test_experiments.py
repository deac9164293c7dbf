"""Every experiment on the disk makes two steps, on its own data where that is embedded or made here."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from blockyard.cli import main
from blockyard.config.choices import catalog
from tests.support.captioned_files import write_captions
from tests.support.image_files import write_photographs
from tests.support.molecule_files import write_molecules
from tests.support.sound_files import corpus
from tests.support.tiny import ONE_BATCH, steps

TWO_STEPS = (*steps(2, 2), *ONE_BATCH, "logger=none")

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
    """Overrides that give an experiment data of its kind; none where its data is embedded."""
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
    if "override /data: molecules" in text:
        return [f"data.path={write_molecules(folder / 'molecules.graphs.jsonl')}", "data.batch_size=8"]
    if "override /data: captions" in text:
        return [f"data.path={write_captions(folder / 'captions')}", "data.batch_size=8"]
    if "override /data: text_file" in text:
        (folder / "input.txt").write_text("To be, or not to be, that is the question.\n" * 200)
        return [f"data.path={folder / 'input.txt'}"]
    return []


def experiments() -> Iterator[Any]:
    """All experiments; one with the data, the model and the objective of an earlier one is left to the full suite."""
    seen: set[tuple[str, ...]] = set()
    for name, choice in catalog.choices("experiment").items():
        kind = tuple(re.findall(r"override /(?:data|model|objective): .*", choice.path.read_text()))
        yield pytest.param(name, marks=pytest.mark.full if kind in seen else ())
        seen.add(kind)


@pytest.mark.parametrize("name", list(experiments()))
def test_two_steps(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = own_data(name, tmp_path / "own") if (tmp_path / "own").mkdir() is None else []
    assert main(["train", f"experiment={name}", *TWO_STEPS, *overrides]) == 0
    (summary,) = tmp_path.glob("outputs/*/s0/summary.json")
    assert json.loads(summary.read_text())["steps"] == 2


@pytest.mark.full
@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["translate_pairs", "views_folder"])
def test_two_steps_on_shared_data(
    name: str, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "views_folder":
        with zipfile.ZipFile(shared_data / "cifar10" / "cifar10_folder.zip") as archive:
            archive.extractall(tmp_path / "photographs")
        where = f"data.root={tmp_path / 'photographs'}"
    else:
        where = f"data.path={shared_data / 'parallel' / 'en-de.tsv.gz'}"
    assert main(["train", f"experiment={name}", *TWO_STEPS, where, "data.eval_batch_size=32"]) == 0
    (summary,) = tmp_path.glob("outputs/*/s0/summary.json")
    assert json.loads(summary.read_text())["steps"] == 2


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("spam_table", "data.path="),
        ("speech_ctc", "data.path="),
        ("translate_pairs", "data.path="),
        ("views_folder", "data.root="),
    ],
)
def test_an_experiment_without_its_data_says_what_is_missing(
    name: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", f"experiment={name}", "logger=none"]) == 2
    assert f"set {key}" in capsys.readouterr().err


@pytest.mark.parametrize("name", list(catalog.choices("experiment")))
def test_header_says_question_command_and_cost(name):
    head = catalog.choices("experiment")[name].path.read_text().partition("defaults:")[0]
    for text in ("question", f"command    blockyard train experiment={name}", "cost", "expected"):
        assert text in head
