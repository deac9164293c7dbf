"""CIFAR-10: 50,000 and 10,000 colour photographs of 32 x 32 pixels, 10 classes.

Source: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
Reference: torchvision.datasets.CIFAR10

Reads root/cifar-10-batches-py, the layout that torchvision writes; for the same images as a folder
of PNG files take data=image_folder. The official test set is the test part; validation is cut from
the training set.
"""

from __future__ import annotations

from pathlib import Path

import torch

from blockyard.contracts import Count, CountOrZero, Rate
from blockyard.data._images import ImageData, Labelled
from blockyard.data._split import Fraction

FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")


class CIFAR10(ImageData):
    """Small photographs, from a folder.

    Options:
        root: the folder that holds cifar-10-batches-py
        download: fetch the files through torchvision where they are missing
    """

    incidental = frozenset({"eval_batch_size", "root", "download"})
    shape = (3, 32, 32)
    classes = 10

    def __init__(
        self,
        *,
        root: str = "data",
        download: bool = False,
        batch_size: Count = 128,
        eval_batch_size: Count = 512,
        validation_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        shift: CountOrZero = 4,
        crop: Rate = 0.0,
        flip: bool = True,
        train_size: Count | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            validation_fraction=validation_fraction,
            split_seed=split_seed,
            shift=shift,
            crop=crop,
            flip=flip,
            train_size=train_size,
        )
        self.root, self.download = Path(root).expanduser(), download

    def missing(self) -> str | None:
        """Which file is not there."""
        absent = self._absent()
        if not absent or self.download:
            return None
        return (
            f"no {absent[0]} in {self._folder.absolute()}; set data.root=FOLDER that holds "
            "cifar-10-batches-py, or data.download=true"
        )

    def prepare(self) -> None:
        """Download what is missing, where that was asked for."""
        if self.download and self._absent():
            from torchvision import datasets

            datasets.CIFAR10(str(self.root), download=True)

    def read(self) -> tuple[Labelled, Labelled]:
        """Both official parts; torchvision compares the files' hashes before it reads them."""
        from torchvision import datasets

        parts = (datasets.CIFAR10(str(self.root), train=train) for train in (True, False))
        train, test = (
            Labelled(
                torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(),  # (n, 3, 32, 32)
                torch.tensor(part.targets),
            )
            for part in parts
        )
        return train, test

    def _absent(self) -> list[str]:
        return [name for name in FILES if not (self._folder / name).is_file()]

    @property
    def _folder(self) -> Path:
        return self.root / "cifar-10-batches-py"
