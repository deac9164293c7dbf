"""Fashion-MNIST: 60,000 training and 10,000 test pictures of clothes, 28 x 28 pixels, 10 classes.

Source: Xiao, Rasul and Vollgraf 2017, Fashion-MNIST (arXiv 1708.07747).
Reference: torchvision.datasets.FashionMNIST

Reads the idx files of root/FashionMNIST/raw, plain or gzipped, and writes nothing. The official
test set is the test split; validation is held out from the training set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from blockyard.data.mnist import IdxData


class FashionMNIST(IdxData):
    """Grayscale pictures of clothes, read from a folder."""

    published_under = "MIT"

    folder: ClassVar[str] = "FashionMNIST"

    def fetch(self) -> None:
        """Download the files through torchvision."""
        from torchvision import datasets

        datasets.FashionMNIST(str(Path(os.path.expanduser(self.root))), download=True)
