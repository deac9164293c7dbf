"""MNIST: 60,000 training and 10,000 test handwritten digits of 28 x 28 pixels, 10 classes.

Source: LeCun, Bottou, Bengio and Haffner 1998, Gradient-Based Learning Applied to Document Recognition.
Reference: torchvision.datasets.MNIST

Reads the idx files of root/MNIST/raw, plain or gzipped, and writes nothing, so the folder may be
read-only. The official test set is the test split; validation is held out from the training set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from blockyard.data._idx import IdxData


class MNIST(IdxData):
    """Handwritten digits, read from a folder."""

    folder: ClassVar[str] = "MNIST"

    def fetch(self) -> None:
        """Downloads the files through torchvision."""
        from torchvision import datasets

        datasets.MNIST(str(Path(os.path.expanduser(self.root))), download=True)
