"""Evaluation never augments: no key reaches a validation or test split, and one would have no effect."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockyard.contracts import Batch, Splits
from blockyard.data.digits import Digits
from blockyard.data.image_folder import ImageFolder
from blockyard.data.splits.images import ImageSplit
from blockyard.evaluate.api import evaluate
from blockyard.tokenizer.patch import Patch
from tests.support.engine_runs import run
from tests.support.image_files import write_images

MOVES = {"shift": 2, "crop": 0.4, "flip": True}


def assert_keys(keys: dict[int, set[int | None]]) -> None:
    """Digits: the 1295 training images are read with keys, the 143 and 359 for evaluation without."""
    assert keys.keys() == {1295, 143, 359}
    assert keys[143] == keys[359] == {None}
    assert keys[1295] - {None}, "nothing was augmented"


def test_evaluation_passes_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a batch run with validation, the test at its end, and `eval` after it."""
    keys: dict[int, set[int | None]] = defaultdict(set)
    batch = ImageSplit.batch

    def spy(self: ImageSplit, order: Tensor, key: int | None) -> Batch:
        keys[len(self)].add(key)
        return batch(self, order, key)

    monkeypatch.setattr(ImageSplit, "batch", spy)
    result = run(tmp_path, "trainer.max_steps=4", "trainer.eval_every=2", "data.shift=2")
    assert_keys(keys)
    keys.clear()
    for split in ("train", "validation", "test"):
        evaluate(result.path, split=split)
    assert keys == {1295: {None}, 143: {None}, 359: {None}}
    with pytest.raises(AssertionError):
        assert_keys({1295: {1, None}, 143: {1}, 359: {None}})


def splits_of(kind: str, folder: Path) -> Splits:
    """Image data with every augmentation on."""
    if kind == "digits":
        return Digits(**MOVES).load(Patch())
    write_images(folder, {"train": 12, "test": 5})
    return ImageFolder(root=str(folder), size=8, memory_limit=10 if kind == "in_memory" else 0, **MOVES).load(Patch())


@pytest.mark.parametrize("kind", ["digits", "in_memory", "lazy"])
def test_a_key_augments_training_images_only(kind: str, tmp_path: Path) -> None:
    splits = splits_of(kind, tmp_path)
    for name, split in splits._asdict().items():
        order = torch.arange(len(split))
        with_key, without = split.batch(order, 5).inputs, split.batch(order, None).inputs
        assert torch.equal(with_key, without) == (name != "train"), name
