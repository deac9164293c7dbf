"""Handwritten digits of scikit-learn: 1,797 images of 8 x 8 pixels, 10 classes, embedded.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits (UCI repository).
Reference: sklearn.datasets.load_digits

There is no official test set here: test and validation parts are cut from the whole by
`split_seed`, class by class.
"""

from __future__ import annotations

import torch

from blockyard.contracts import Count, CountOrZero, Rate
from blockyard.data._images import ImageData, Labelled
from blockyard.data._order import mix
from blockyard.data._split import Fraction, stratified


class Digits(ImageData):
    """The digits that come with scikit-learn; needs no file and no network.

    Options:
        test_fraction: share of all images that is the test part
        validation_fraction: share of the remaining images that is the validation part
    """

    shape = (1, 8, 8)
    classes = 10

    def __init__(
        self,
        *,
        batch_size: Count = 64,
        eval_batch_size: Count = 512,
        test_fraction: Fraction = 0.2,
        validation_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        shift: CountOrZero = 0,
        crop: Rate = 0.0,
        flip: bool = False,
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
        self.test_fraction = test_fraction

    def read(self) -> tuple[Labelled, Labelled]:
        """Grey levels 0 to 16 as they are."""
        from sklearn.datasets import load_digits

        found = load_digits()
        images = torch.from_numpy(found.images).to(torch.uint8)[:, None]  # (n, 1, 8, 8)
        every = Labelled(images, torch.from_numpy(found.target).long())
        # Another stream than the validation split's, which sees a part of the same list.
        rest, test = stratified(every.target, self.test_fraction, mix("test", self.split_seed))
        return every.pick(rest), every.pick(test)
