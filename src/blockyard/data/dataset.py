"""A torch Dataset of your own, by the name of its class.

Source: torch.utils.data.Dataset, IterableDataset
Reference: torchvision.datasets, with allow=[torchvision]

A sample is a pair (input, target), a mapping, or an input alone. Inputs are images (C, height, width), series
(steps, C), vectors (F,) or token ids (N,), as arrays, tensors or images of Pillow; targets are classes, real values or
token ids. The order of the samples is blockyard's, and their random transforms are seeded by seed, epoch and sample, so
that a run resumes exactly. An IterableDataset is read in its own order, and nothing of this holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.utils.data import Dataset

from blockyard.data.splits.own_data import Own, OwnData
from blockyard.errors import UserError


@dataclass(kw_only=True, eq=False)
class OwnDataset(OwnData):
    """Samples of a Dataset by `_target_`, in a package that `allow` names.

    Options:
        train: the dataset, data.train._target_=package.Class; its arguments beside it, data.train.NAME=VALUE
        validation: that of validation; null draws the split from the training samples
        test: that of the test; null draws the split from the training samples
    """

    train: Callable[[], Dataset] | None = None
    validation: Callable[[], Dataset] | None = None
    test: Callable[[], Dataset] | None = None

    def datasets(self) -> dict[str, Own]:
        """Make the datasets that are named."""
        if self.train is None:
            raise UserError("data.train names no dataset; set data.train._target_=package.Class 'allow=[package]'")
        makers = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: Own(f"data.{name}", make()) for name, make in makers.items() if make is not None}
