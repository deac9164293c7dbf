"""Fashion-MNIST: 60,000 and 10,000 pictures of clothes, 28 x 28 pixels, 10 classes.

Source: Xiao, Rasul and Vollgraf 2017, Fashion-MNIST (arXiv 1708.07747).
Reference: torchvision.datasets.FashionMNIST

Reads the idx files of root/FashionMNIST/raw, packed (.gz) or not, and writes nothing. The official
test set is the test part; validation is cut from the training set.
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.data._idx import IdxData


class FashionMNIST(IdxData):
    """Clothes in grey, from a folder."""

    folder: ClassVar[str] = "FashionMNIST"

    def fetch(self) -> None:
        """Download through torchvision."""
        from torchvision import datasets

        datasets.FashionMNIST(str(self.root), download=True)
