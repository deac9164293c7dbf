"""Handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, 10 classes, included in the package.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits (UCI repository).
Reference: sklearn.datasets.load_digits

There is no official test set: `split_seed` holds out the test and validation splits, stratified by class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockyard.contracts import Count
from blockyard.data._images import ImageData, LabelledImages
from blockyard.data._order import mix
from blockyard.data._split import Fraction, stratified


@dataclass(kw_only=True, eq=False)
class Digits(ImageData):
    """The digits that come with scikit-learn; needs no file and no network.

    Options:
        test_fraction: share of all images that is the test split
        validation_fraction: share of the remaining images that is the validation split
    """

    shape = (1, 8, 8)
    classes = 10

    batch_size: Count = 64
    test_fraction: Fraction = 0.2

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Reads gray levels from 0 to 16, unscaled."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.from_numpy(digits.images).to(torch.uint8)[:, None]  # (n, 1, 8, 8)
        data = LabelledImages(images, torch.from_numpy(digits.target).long())
        # A different stream from that of the validation split, which is drawn from the rest.
        rest, test = stratified(data.target, self.test_fraction, mix("test", self.split_seed))
        return data.select(rest), data.select(test)
