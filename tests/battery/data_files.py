"""Small data sets on disk, in the formats that the shipped data components read."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np

from blockyard.tokenizer.bpe import _train
from tests.support.captioned_files import write_captions
from tests.support.image_files import samples, write_images, write_shard
from tests.support.molecule_files import write_molecules
from tests.support.sound_files import corpus

WORDS = ["to", "be", "or", "not", "that", "is", "the", "question", "whether", "nobler", "in", "mind", "suffer"]


def write_data(root: Path) -> Path:
    """Write a file or folder of every format below `root`, the same bytes every time; return `root`."""
    draws = np.random.default_rng(0)
    for name in ("MNIST", "FashionMNIST"):
        _write_idx(root / name / "raw", draws)
    _write_cifar(root / "cifar-10-batches-py", draws)
    write_images(root / "images", {"train": 12, "test": 4})
    for number, part in enumerate(("train", "val")):
        write_shard(root / "shards" / f"{part}.tar", samples(24 * number, 24))
    lines = [" ".join(draws.choice(WORDS, 7)) for _ in range(120)]
    (root / "input.txt").write_text("\n".join(lines) + "\n")
    draws_of_ids = np.random.default_rng(1)
    draws_of_ids.integers(0, 50, 6000, dtype=np.uint16).tofile(root / "ids.bin")
    pairs = [f"the {n}th word\tdas {n}. Wort\t{('train', 'val', 'test')[n % 3]}" for n in range(60)]
    (root / "pairs.tsv").write_text("\n".join(["en\tde\tsplit", *pairs]) + "\n")
    mails = [f"{('buy now', 'see you')[n % 2]} {n}\t{('spam', 'ham')[n % 2]}" for n in range(120)]
    (root / "mails.tsv").write_text("\n".join(["text\tlabel", *mails]) + "\n")
    np.savez(root / "arrays.npz", x=draws.integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    steps = [f"{n},{draws.normal():.4f},{n % 7}" for n in range(300)]
    (root / "series.csv").write_text("\n".join(["hour,level,load", *steps]) + "\n")
    waves = [f"{','.join(f'{draws.normal():.4f}' for _ in range(16 + n % 3))}:{n % 3}" for n in range(90)]
    (root / "waves.ts").write_text("\n".join(["@classLabel true 0 1 2", "@data", *waves]) + "\n")
    _train(["def f(x):\n    return x\n"], 260).save(str(root / "tokenizer.json"))
    write_molecules(root / "molecules.graphs.jsonl")
    corpus(root / "sounds")
    write_captions(root / "captions")
    return root


def data_overrides(data: str, root: Path) -> tuple[str, ...]:
    """Overrides that point a choice of `data` at the files that `write_data` wrote; none where it needs no file."""
    where = {
        "mnist": f"data.root={root}",
        "fashion_mnist": f"data.root={root}",
        "cifar10": f"data.root={root}",
        "cifar10_views": f"data.root={root}",
        "image_folder": f"data.root={root / 'images'}",
        "image_folder_views": f"data.root={root / 'images'}",
        "webdataset": f"data.path={root / 'shards'}",
        "dataset": "data.train._target_=tests.support.own_data.Squares",
        "lightning": "data.module._target_=tests.support.own_data.Module",
        "mixture": f"data.members.text_file.path={root / 'input.txt'}",
        "text_file": f"data.path={root / 'input.txt'}",
        "tokens": f"data.path={root / 'ids.bin'}",
        "table": f"data.path={root / 'mails.tsv'}",
        "arrays": f"data.path={root / 'arrays.npz'}",
        "hf": f"data.path={root / 'mails.tsv'}",
        "series_file": f"data.path={root / 'series.csv'}",
        "series_table": f"data.path={root / 'waves.ts'}",
        "speech": f"data.path={root / 'sounds' / 'speech.tsv'}",
        "captions": f"data.path={root / 'captions'}",
        "molecules": f"data.path={root / 'molecules.graphs.jsonl'}",
    }
    small = ("data.time=hour", "data.history=24", "data.horizon=8", "data.split=[0.7,0.1,0.2]")
    own = ("allow=[tests]",)
    more = {"dataset": own, "lightning": own, "series_file": small, "tokens": ("data.vocabulary=50",)}
    return (where[data], *more.get(data, ())) if data in where else ()


def accept_small_cifar() -> None:
    """In this process, let torchvision read the files of `write_data`: it knows the hashes of the real ones."""
    import torchvision

    torchvision.datasets.cifar.check_integrity = lambda *_: True


def _write_idx(folder: Path, draws: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", 120), ("t10k", 40)):
        pixels = draws.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 0x803, *pixels.shape) + pixels.tobytes()
        )
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())


def _write_cifar(folder: Path, draws: np.random.Generator) -> None:
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        entry = {"data": draws.integers(0, 256, (20, 3072), dtype=np.uint8), "labels": [n % 10 for n in range(20)]}
        (folder / name).write_bytes(pickle.dumps(entry))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(n) for n in range(10)]}))
