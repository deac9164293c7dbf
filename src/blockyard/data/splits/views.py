"""Several partial views of an image, for models of sets of views."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Batch, DataSpec, Side, Split, Splits, Tokenizer
from blockyard.data.splits.hash import normal, uniform

# The largest changes, at strength 1; each draw is uniform between minus and plus its largest change.
ANGLE, SCALE, SHIFT, CONTRAST = math.radians(45), 0.4, 0.25, 0.5  # radians, share, share of the side, share
NOISE = 0.5  # standard deviations of the training images
MOVES = 5  # draws of a view besides its noise
Strength = Annotated[float, Ge(0), Le(1)]

if TYPE_CHECKING:
    from blockyard.data.splits.images import ImageData

    Base = ImageData
else:
    # As a subclass of ImageData this mixin would put that class's defaults before those of the data set.
    Base = object


@dataclass(kw_only=True, eq=False)
class Views(Base):
    """Mixin of an image data set that replaces its images by sets of views.

    Options:
        views: views per training image
        least_views: draw each image's number of views from here to `views`, again in each epoch; null always uses
            `views`
        eval_views: views per image in evaluation; null uses `views`
        size: side of a view in pixels
        flip: mirror half of the views
        look: what a view is: crop cuts out a square at random, augment turns, scales and shifts the whole image,
            changes its contrast and adds noise
        strength: how much augment changes, from 0 to 1; null is 0.5
    """

    views: Side = 4
    least_views: Side | None = None
    eval_views: Side | None = None
    size: Side = 16
    flip: bool = True
    look: Literal["crop", "augment"] = "crop"
    strength: Strength | None = None
    # Images are not augmented before views are cropped, so these are not options here.
    shift: int = field(default=0, init=False, repr=False)
    crop: float = field(default=0.0, init=False, repr=False)
    rand_augment: int = field(default=0, init=False, repr=False)
    rand_magnitude: None = field(default=None, init=False, repr=False)
    augment: None = field(default=None, init=False, repr=False)
    erasing: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.look == "crop" and self.strength is not None:
            raise ValueError(f"data.strength={self.strength} is for data.look=augment; use that, or strength=null")
        if self.size > min(self.shape[1:]):
            raise ValueError(
                f"data.size={self.size} is larger than the images, {self.shape[1]} x {self.shape[2]} pixels"
            )
        if self.least_views is not None and self.least_views > self.views:
            raise ValueError(f"data.least_views={self.least_views} is more than data.views={self.views}")

    @property
    def train_sampling(self) -> ViewSampling:
        """The options by which views are drawn in training."""
        least = self.views if self.least_views is None else self.least_views
        return ViewSampling(self.views, least, self.size, self.flip, self._strength)

    @property
    def _strength(self) -> float | None:
        """The strength of the augmentation, None for crops."""
        if self.look == "crop":
            return None
        return 0.5 if self.strength is None else self.strength

    @property
    def eval_sampling(self) -> ViewSampling:
        """The options by which views are drawn in evaluation: always the same number."""
        count = self.views if self.eval_views is None else self.eval_views
        return ViewSampling(count, count, self.size, self.flip, self._strength)

    @property
    def spec(self) -> DataSpec:
        """Sets of views of one size with a class each."""
        train, evaluation = self.train_sampling, self.eval_sampling
        most = max(train.most, evaluation.most)
        variable = min(train.least, evaluation.least) < most
        shape = (most, self.shape[0], self.size, self.size)
        return DataSpec("views", shape, variable=variable, target="class", classes=self.classes)

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Load the images' splits and wrap each in a `ViewSplit`."""
        train, *others = super().load(tokenizer)
        eval_splits = (ViewSplit(split, self.eval_sampling) for split in others)
        return Splits(ViewSplit(train, self.train_sampling), *eval_splits)


class ViewSplit:
    """Views of the images of another split: squares cropped at random positions, or augmented whole images.

    A view is a function of (key, image index, view number): without a key it is the same every time,
    and a larger set of views of an image starts with the views of a smaller one.
    """

    def __init__(self, images: Split, sampling: ViewSampling) -> None:
        self.images, self.sampling = images, sampling

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Return inputs (B, W, C, side, side) and target (B,).

        If images have different numbers of views, also lengths (B,); W is then that of the largest set, and
        padded views are zero.
        """
        sampling, batch = self.sampling, self.images.batch(order, None)
        # A crop is drawn by its position down and right and by its flip.
        count = 3 if sampling.strength is None else draws_of_view(batch.inputs.shape[1], sampling.side)
        draws = uniform(0 if key is None else key, order, 1 + count * sampling.most).T  # (B, 1 + count W)
        lengths = sampling.least + (draws[:, 0] * (sampling.most - sampling.least + 1)).long()  # (B,)
        draws = draws[:, 1:].reshape(len(order), sampling.most, count)
        views = self._crop(batch.inputs, draws) if sampling.strength is None else self._augment(batch.inputs, draws)
        if sampling.least == sampling.most:
            return Batch(views, batch.target)
        padding = torch.arange(sampling.most) >= lengths[:, None]  # (B, W)
        views = views.masked_fill(padding[..., None, None, None], 0.0)[:, : int(lengths.max())]
        return Batch(views, batch.target, lengths=lengths)

    def _crop(self, images: Tensor, draws: Tensor) -> Tensor:
        """Cut squares out of images (B, C, height, width) -> (B, W, C, side, side). draws: (B, W, 3)"""
        side = self.sampling.side
        windows = images.unfold(2, side, 1).unfold(3, side, 1)  # (B, C, rows, cols, side, side)
        rows, cols = windows.shape[2:4]
        down, right = (draws[..., 0] * rows).long(), (draws[..., 1] * cols).long()  # (B, W)
        views = windows[torch.arange(len(images))[:, None], :, down, right]  # (B, W, C, side, side)
        return self._flip(views, draws[..., 2])

    def _augment(self, images: Tensor, draws: Tensor) -> Tensor:
        """Augment whole images (B, C, height, width) -> (B, W, C, side, side). draws: (B, W, ...)"""
        assert self.sampling.strength is not None
        views = augmented_views(images, draws[..., 1:], self.sampling.side, self.sampling.strength)
        return self._flip(views, draws[..., 0])

    def _flip(self, views: Tensor, draws: Tensor) -> Tensor:
        """Mirror the views (B, W, C, side, side) with draws (B, W) below one half, where the options say so."""
        if not self.sampling.flip:
            return views
        return torch.where((draws < 0.5)[..., None, None, None], views.flip(-1), views)


class ViewSampling(NamedTuple):
    """Options by which views are drawn.

    most, least: views per image; side: of a view in pixels; flip: mirror half of them
    strength: of the augmentation of whole images, from 0 to 1; None crops squares instead
    """

    most: int
    least: int
    side: int
    flip: bool
    strength: float | None = None


def draws_of_view(channels: int, side: int) -> int:
    """Return the uniform numbers that a view takes: one to flip, its moves, two for the noise of each value."""
    return 1 + MOVES + 2 * channels * side * side


def augmented_views(images: Tensor, draws: Tensor, side: int, strength: float) -> Tensor:
    """Return views that are whole images, each moved, with another contrast and noise.

    Images (B, C, height, width) -> (B, W, C, side, side). Beyond its edge an image goes on with its last pixels.

    Source: Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations (SimCLR,
        arXiv 2002.05709), section 3, for sets of random data augmentations
    Reference: torchvision.transforms.functional.affine
    Equation: view(p) = contrast * image(A p + shift) + noise, with A a rotation over a scale

    draws: (B, W, MOVES + 2 C side side) in [0, 1); strength: 0 only resizes, 1 changes most
    """
    batch, views = draws.shape[:2]
    channels = images.shape[1]
    signed = (2 * draws[..., :MOVES] - 1) * strength  # (B, W, MOVES), each in [-strength, strength)
    angle, scale = signed[..., 0] * ANGLE, 1 / (1 + signed[..., 1] * SCALE)
    theta = images.new_zeros(batch, views, 2, 3)
    theta[..., 0, 0] = theta[..., 1, 1] = scale * angle.cos()
    theta[..., 1, 0] = scale * angle.sin()
    theta[..., 0, 1] = -theta[..., 1, 0]
    theta[..., 2] = signed[..., 2:4] * SHIFT * 2  # the grid goes from -1 to 1
    grid = F.affine_grid(theta.flatten(0, 1), [batch * views, channels, side, side], align_corners=False)
    # The views of an image side by side, so that no image is copied.
    grid = grid.unflatten(0, (batch, views)).flatten(1, 2)  # (B, W side, side, 2)
    moved = F.grid_sample(images, grid, padding_mode="border", align_corners=False)  # (B, C, W side, side)
    moved = moved.unflatten(2, (views, side)).transpose(1, 2)  # (B, W, C, side, side)
    contrast = 1 + signed[..., 4] * CONTRAST
    noise = normal(draws[..., MOVES:].unflatten(-1, (*moved.shape[2:], 2))) * (NOISE * strength)
    return (moved * contrast[..., None, None, None] + noise).to(images.dtype)
