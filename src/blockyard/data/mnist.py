"""MNIST: 60,000 and 10,000 handwritten digits of 28 x 28 pixels, 10 classes.

Source: LeCun, Bottou, Bengio and Haffner 1998, Gradient-Based Learning Applied to Document Recognition.
Reference: torchvision.datasets.MNIST

Reads the idx files of root/MNIST/raw, packed (.gz) or not, and writes nothing: a read-only folder
will do. The official test set is the test part; validation is cut from the training set.
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.data._idx import IdxData


class MNIST(IdxData):
    """Handwritten digits, from a folder."""

    folder: ClassVar[str] = "MNIST"

    def fetch(self) -> None:
        """Download through torchvision."""
        from torchvision import datasets

        datasets.MNIST(str(self.root), download=True)
