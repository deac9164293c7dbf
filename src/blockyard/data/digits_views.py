"""Handwritten digits seen a piece at a time: several small squares of one image, in no order.

Source: Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits; as sets of views Su et al. 2015,
    Multi-view Convolutional Neural Networks for 3D Shape Recognition (arXiv 1505.00880)
Reference: sklearn.datasets.load_digits

Where on the image a view lies is not told. In evaluation the views of an image are always the same.
"""

from __future__ import annotations

from blockyard.contracts import Count, CountOrZero
from blockyard.data._split import Fraction
from blockyard.data._views import Views
from blockyard.data.digits import Digits


class DigitsViews(Views, Digits):
    """Views of scikit-learn's digits; needs no file and no network.

    Options:
        flip: mirror half of the views
    """

    def __init__(
        self,
        *,
        views: Count = 6,
        least_views: Count | None = None,
        eval_views: Count | None = None,
        size: Count = 5,
        flip: bool = False,
        batch_size: Count = 64,
        eval_batch_size: Count = 512,
        test_fraction: Fraction = 0.2,
        validation_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        train_size: Count | None = None,
    ) -> None:
        super().__init__(
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            test_fraction=test_fraction,
            validation_fraction=validation_fraction,
            split_seed=split_seed,
            train_size=train_size,
        )
        self.look(views, least_views, eval_views, size, flip)
