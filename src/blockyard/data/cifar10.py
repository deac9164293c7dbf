"""CIFAR-10: 50,000 training and 10,000 test color photographs of 32 x 32 pixels, 10 classes.

Source: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
Reference: torchvision.datasets.CIFAR10

Reads root/cifar-10-batches-py, the layout that torchvision writes; for the same images as a folder
of PNG files use data=image_folder. The official test set is the test split; validation is held out
from the training set.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from blockyard.contracts import CountOrZero, Text
from blockyard.data.splits.images import ImageData, LabelledImages

FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")


@dataclass(kw_only=True, eq=False)
class CIFAR10(ImageData):
    """Small photographs, read from a folder.

    Options:
        root: the folder that holds cifar-10-batches-py
        download: download missing files through torchvision
    """

    incidental = frozenset({"eval_batch_size", "root", "download"})
    shape = (3, 32, 32)
    classes = 10

    root: Text = "data"
    download: bool = False
    shift: CountOrZero = 4
    flip: bool = True

    def missing(self) -> str | None:
        """Return a message that names the missing file and the remedy, or None."""
        absent = self._absent()
        if not absent or self.download:
            return None
        return (
            f"no {absent[0]} in {self._folder.absolute()}; set data.root=FOLDER that holds "
            "cifar-10-batches-py, or data.download=true"
        )

    def to_download(self) -> bool:
        """Return whether files are missing and `download` is set."""
        return self.download and bool(self._absent())

    def prepare(self) -> None:
        """Download missing files if `download` is set."""
        if self.to_download():
            from torchvision import datasets

            datasets.CIFAR10(str(self._root), download=True)

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Read the official training and test sets; torchvision verifies the files' hashes first."""
        from torchvision import datasets

        splits = []
        for is_train in (True, False):
            part = datasets.CIFAR10(str(self._root), train=is_train)
            images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()  # (n, 3, 32, 32)
            splits.append(LabelledImages(images, torch.tensor(part.targets)))
        train, test = splits
        return train, test

    def _absent(self) -> list[str]:
        return [name for name in FILES if not (self._folder / name).is_file()]

    @property
    def _root(self) -> Path:
        return Path(os.path.expanduser(self.root))

    @property
    def _folder(self) -> Path:
        return self._root / "cifar-10-batches-py"
