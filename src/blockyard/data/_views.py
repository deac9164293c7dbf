"""Several partial views of an image: what a model of sets of views is trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from blockyard.contracts import Batch, DataSpec, Split, Splits, Tokenizer
from blockyard.data._hash import uniform

if TYPE_CHECKING:
    from blockyard.data._images import ImageData

    Base = ImageData
else:
    Base = object


class Looks(NamedTuple):
    """How views are taken. most, least: views of an image; side: of a view in pixels; flip: mirror half of them."""

    most: int
    least: int
    side: int
    flip: bool


class ViewSplit:
    """Views of the images of another split: squares cut out at random places.

    A view is a function of (key, number of the image, number of the view): without a key it is the same
    at every look, and more views of an image begin with those of fewer.
    """

    def __init__(self, images: Split, looks: Looks) -> None:
        self.images, self.looks = images, looks

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Inputs (B, W, C, side, side), target (B,); where images have different numbers of views, also
        lengths (B,), and W is that of the longest row: views behind the end are zero.
        """
        looks, found = self.looks, self.images.batch(order, None)
        draws = uniform(0 if key is None else key, order, 1 + 3 * looks.most).T  # (B, 1 + 3 W)
        lengths = looks.least + (draws[:, 0] * (looks.most - looks.least + 1)).long()  # (B,)
        views = self._cut(found.inputs, draws[:, 1:].reshape(len(order), looks.most, 3))
        if looks.least == looks.most:
            return Batch(views, found.target)
        behind = torch.arange(looks.most) >= lengths[:, None]  # (B, W)
        views = views.masked_fill(behind[..., None, None, None], 0.0)[:, : int(lengths.max())]
        return Batch(views, found.target, lengths=lengths)

    def _cut(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images (B, C, height, width), draws (B, W, 3) -> (B, W, C, side, side)."""
        side = self.looks.side
        places = images.unfold(2, side, 1).unfold(3, side, 1)  # (B, C, rows, cols, side, side)
        rows, cols = places.shape[2:4]
        down, right = (draws[..., 0] * rows).long(), (draws[..., 1] * cols).long()  # (B, W)
        views = places[torch.arange(len(images))[:, None], :, down, right]  # (B, W, C, side, side)
        if self.looks.flip:
            views = torch.where((draws[..., 2] < 0.5)[..., None, None, None], views.flip(-1), views)
        return views


class Views(Base):
    """Mixed into an image data set, which then gives views of its images.

    Options:
        views: of an image, in training
        least_views: draws each image's number of views from here to `views`, anew in each epoch; null is always `views`
        eval_views: of an image in evaluation; null is as many as `views`
        size: side of a view in pixels, a square cut out at random; flip mirrors half of the views
    """

    looks: Looks
    eval_looks: Looks

    def look(self, views: int, least_views: int | None, eval_views: int | None, size: int, flip: bool) -> None:
        """Remember how; called by constructors. Raises ValueError for what cannot be cut."""
        if size > min(self.shape[1:]):
            raise ValueError(f"data.size={size} is larger than the images, {self.shape[1]} x {self.shape[2]} pixels")
        if least_views is not None and least_views > views:
            raise ValueError(f"data.least_views={least_views} is more than data.views={views}")
        shown = views if eval_views is None else eval_views
        self.looks = Looks(views, views if least_views is None else least_views, size, flip)
        self.eval_looks = Looks(shown, shown, size, flip)

    @property
    def spec(self) -> DataSpec:
        """Rows of views of one shape, and as many classes."""
        most, side = max(self.looks.most, self.eval_looks.most), self.looks.side
        variable = min(self.looks.least, self.eval_looks.least) < most
        shape = (most, self.shape[0], side, side)
        return DataSpec("views", shape, variable=variable, target="class", classes=self.classes)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """The images' own parts, looked at."""
        train, *others = super().load(tokenizer)
        return Splits(ViewSplit(train, self.looks), *(ViewSplit(part, self.eval_looks) for part in others))
