"""Images of your own seen a piece at a time: several squares of each, in no order.

Source: the folder layout of torchvision; as sets of views Su et al. 2015, Multi-view Convolutional Neural
    Networks for 3D Shape Recognition (arXiv 1505.00880)
Reference: torchvision.datasets.ImageFolder

Where on the image a view lies is not told. In evaluation the views of an image are always the same.
"""

from __future__ import annotations

from typing import Literal

from blockyard.contracts import Count, CountOrZero
from blockyard.data._split import Fraction
from blockyard.data._views import Views
from blockyard.data.image_folder import ImageFolder


class ImageFolderViews(Views, ImageFolder):
    """Views of image files in a folder per class.

    Options:
        image_size: side of an image in pixels, after scaling, before views are cut out of it
        flip: mirror half of the views
    """

    def __init__(
        self,
        *,
        root: str = "data/images",
        image_size: Count = 32,
        channels: Literal[1, 3] = 3,
        views: Count = 4,
        least_views: Count | None = None,
        eval_views: Count | None = None,
        size: Count = 16,
        flip: bool = True,
        test_fraction: Fraction = 0.1,
        memory_limit: CountOrZero = 2048,
        workers: CountOrZero = 2,
        batch_size: Count = 128,
        eval_batch_size: Count = 512,
        validation_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        train_size: Count | None = None,
    ) -> None:
        super().__init__(
            root=root,
            size=image_size,
            channels=channels,
            test_fraction=test_fraction,
            memory_limit=memory_limit,
            workers=workers,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            validation_fraction=validation_fraction,
            split_seed=split_seed,
            train_size=train_size,
        )
        self.look(views, least_views, eval_views, size, flip)
