"""Handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, 10 classes, included in the package.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits (UCI repository).
Reference: sklearn.datasets.load_digits

The data set has no official test split: `split_seed` holds out the test and validation splits, stratified by class.
"""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from blockyard.contracts import BatchSize
from blockyard.data.splits.images import ImageData, LabelledImages
from blockyard.data.splits.order import mix
from blockyard.data.splits.split import Fraction, stratified


@dataclass(kw_only=True, eq=False)
class Digits(ImageData):
    """The digits that come with scikit-learn; needs no file and no network.

    Options:
        test_fraction: share of all images that is the test split
        validation_fraction: share of the remaining images that is the validation split
    """

    published_under = "CC-BY-4.0"

    shape = (1, 8, 8)
    classes = 10
    levels = 17

    batch_size: BatchSize = 64
    test_fraction: Fraction = 0.2

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Read gray levels from 0 to 16, unscaled."""
        table = torch.from_numpy(_read_table())  # (n, 65)
        images = table[:, :-1].to(torch.uint8).view(-1, 1, 8, 8)  # (n, 1, 8, 8)
        data = LabelledImages(images, table[:, -1].long())
        # A different stream from that of the validation split, which is drawn from the rest.
        rest, test = stratified(data.target, self.test_fraction, mix("test", self.split_seed))
        return data.select(rest), data.select(test)


def _read_table() -> np.ndarray:
    """Return the table that `load_digits` reads: 64 gray levels and the class of each image, (n, 65) float.

    Importing scikit-learn takes more than a second, longer than training on its digits, so its file is read directly.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("data=digits reads a file of scikit-learn: pip install scikit-learn")
    path = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return np.loadtxt(file, delimiter=",")
