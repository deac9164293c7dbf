"""CIFAR-10 seen a piece at a time: several squares of one photograph, in no order.

Source: Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; as sets of views Su et al. 2015,
    Multi-view Convolutional Neural Networks for 3D Shape Recognition (arXiv 1505.00880)
Reference: torchvision.datasets.CIFAR10

Where on the photograph a view lies is not told. In evaluation the views of one are always the same.
"""

from __future__ import annotations

from blockyard.contracts import Count, CountOrZero
from blockyard.data._split import Fraction
from blockyard.data._views import Views
from blockyard.data.cifar10 import CIFAR10


class CIFAR10Views(Views, CIFAR10):
    """Views of small photographs, from a folder.

    Options:
        flip: mirror half of the views
    """

    def __init__(
        self,
        *,
        root: str = "data",
        download: bool = False,
        views: Count = 4,
        least_views: Count | None = None,
        eval_views: Count | None = None,
        size: Count = 16,
        flip: bool = True,
        batch_size: Count = 128,
        eval_batch_size: Count = 512,
        validation_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        train_size: Count | None = None,
    ) -> None:
        super().__init__(
            root=root,
            download=download,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            validation_fraction=validation_fraction,
            split_seed=split_seed,
            train_size=train_size,
        )
        self.look(views, least_views, eval_views, size, flip)
