"""Several partial views of an image, for models of sets of views."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, Side, Split, Splits, Tokenizer
from blockyard.data._hash import uniform

if TYPE_CHECKING:
    from blockyard.data._images import ImageData

    Base = ImageData
else:
    # As a subclass of ImageData this mixin would put that class's defaults before those of the data set.
    Base = object


class ViewSampling(NamedTuple):
    """How views are drawn. most, least: views per image; side: of a view in pixels; flip: mirror half of them."""

    most: int
    least: int
    side: int
    flip: bool


class ViewSplit:
    """Views of the images of another split: squares cropped at random positions.

    A view is a function of (key, image index, view number): without a key it is the same every time,
    and a larger set of views of an image starts with the views of a smaller one.
    """

    def __init__(self, images: Split, sampling: ViewSampling) -> None:
        self.images, self.sampling = images, sampling

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns inputs (B, W, C, side, side) and target (B,).

        If images have different numbers of views, also lengths (B,); W is then that of the largest set, and
        padded views are zero.
        """
        sampling, batch = self.sampling, self.images.batch(order, None)
        draws = uniform(0 if key is None else key, order, 1 + 3 * sampling.most).T  # (B, 1 + 3 W)
        lengths = sampling.least + (draws[:, 0] * (sampling.most - sampling.least + 1)).long()  # (B,)
        views = self._crop(batch.inputs, draws[:, 1:].reshape(len(order), sampling.most, 3))
        if sampling.least == sampling.most:
            return Batch(views, batch.target)
        padding = torch.arange(sampling.most) >= lengths[:, None]  # (B, W)
        views = views.masked_fill(padding[..., None, None, None], 0.0)[:, : int(lengths.max())]
        return Batch(views, batch.target, lengths=lengths)

    def _crop(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images (B, C, height, width), draws (B, W, 3) -> (B, W, C, side, side)."""
        side = self.sampling.side
        windows = images.unfold(2, side, 1).unfold(3, side, 1)  # (B, C, rows, cols, side, side)
        rows, cols = windows.shape[2:4]
        down, right = (draws[..., 0] * rows).long(), (draws[..., 1] * cols).long()  # (B, W)
        views = windows[torch.arange(len(images))[:, None], :, down, right]  # (B, W, C, side, side)
        if self.sampling.flip:
            views = torch.where((draws[..., 2] < 0.5)[..., None, None, None], views.flip(-1), views)
        return views


@dataclass(kw_only=True, eq=False)
class Views(Base):
    """Mixin of an image data set that replaces its images by sets of views.

    Options:
        views: views per training image
        least_views: draw each image's number of views from here to `views`, again in each epoch; null always uses
            `views`
        eval_views: views per image in evaluation; null uses `views`
        size: side of a view in pixels, a square cropped at random
        flip: mirror half of the views
    """

    views: Side = 4
    least_views: Side | None = None
    eval_views: Side | None = None
    size: Side = 16
    flip: bool = True
    # Images are not augmented before views are cropped, so these two are not options here.
    shift: int = field(default=0, init=False, repr=False)
    crop: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.size > min(self.shape[1:]):
            raise ValueError(
                f"data.size={self.size} is larger than the images, {self.shape[1]} x {self.shape[2]} pixels"
            )
        if self.least_views is not None and self.least_views > self.views:
            raise ValueError(f"data.least_views={self.least_views} is more than data.views={self.views}")

    @property
    def train_sampling(self) -> ViewSampling:
        """How views are drawn in training."""
        least = self.views if self.least_views is None else self.least_views
        return ViewSampling(self.views, least, self.size, self.flip)

    @property
    def eval_sampling(self) -> ViewSampling:
        """How views are drawn in evaluation: always the same number."""
        count = self.views if self.eval_views is None else self.eval_views
        return ViewSampling(count, count, self.size, self.flip)

    @property
    def spec(self) -> DataSpec:
        """Sets of views of one size with a class each."""
        train, evaluation = self.train_sampling, self.eval_sampling
        most = max(train.most, evaluation.most)
        variable = min(train.least, evaluation.least) < most
        shape = (most, self.shape[0], self.size, self.size)
        return DataSpec("views", shape, variable=variable, target="class", classes=self.classes)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Loads the images' splits and wraps each in a `ViewSplit`."""
        train, *others = super().load(tokenizer)
        eval_splits = (ViewSplit(split, self.eval_sampling) for split in others)
        return Splits(ViewSplit(train, self.train_sampling), *eval_splits)
