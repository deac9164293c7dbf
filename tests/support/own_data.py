"""Datasets as users write them: with random transforms, with and without a length, and in a LightningDataModule."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Squares(Dataset[Any]):
    """Dark and bright squares with noise of three generators. fault: what is wrong with sample 17."""

    classes = ("dark", "bright")

    def __init__(self, count: int = 90, fault: str = "") -> None:
        self.count, self.fault = count, fault

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        noise = torch.rand(1, 8, 8) + float(np.random.rand()) + random.random()
        image, label = noise + 4 * (index % 2), index % 2
        if index == 17 and self.fault == "shape":
            return image[:, :7], label
        if index == 17 and self.fault == "raise":
            raise OSError("no such file")
        if index == 17 and self.fault == "class":
            return image, 7
        if self.fault == "text":
            return "an image", label
        return {"picture": image, "label": label} if self.fault == "keys" else (image, label)


class Numbers(Dataset[Any]):
    """Vectors and a real value. gap: whether the value of sample 5 is NaN."""

    def __init__(self, gap: bool = False) -> None:
        self.gap = gap

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return np.array([index, 1.0, 2.0]), float("nan") if self.gap and index == 5 else index / 40


class Ids(Dataset[Any]):
    """Token ids alone."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        return np.arange(9) % 5


class Stream(IterableDataset[Any]):
    """Images of the value 0, 1, 2, ..."""

    classes = ("even", "odd")

    def __init__(self, count: int = 12) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield torch.full((1, 8, 8), float(number)), number % 2


class Module(pl.LightningDataModule):
    """Two loaders; the test split has none. collated: whether the loaders have a collate_fn of their own."""

    def __init__(self, count: int = 90, collated: bool = False) -> None:
        super().__init__()
        self.count, self.collated, self.stages = count, collated, list[str]()

    def prepare_data(self) -> None:
        self.stages.append("prepare")

    def setup(self, stage: str) -> None:
        self.stages.append(stage)

    def _loader(self, count: int) -> Any:
        assert self.stages[0] == "prepare"
        collate = {"collate_fn": _doubled} if self.collated else {}
        return DataLoader(Squares(count), batch_size=7, shuffle=True, **collate)

    def train_dataloader(self) -> Any:
        return self._loader(self.count)

    def val_dataloader(self) -> Any:
        return self._loader(20)


def _doubled(items: list[Any]) -> Any:
    return {"inputs": 2 * torch.stack([item[0] for item in items]), "target": torch.tensor([item[1] for item in items])}
