"""Vectorised shift, flip and crop; every random number is a hash of (key, sample, stream)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.data.splits.hash import uniform

LARGE = 2**15  # values of an image from which on each is treated by itself


@dataclass(frozen=True)
class Augment:
    """Random augmentation of training images.

    shift: translate by up to this many pixels along each axis, padding with zeros
    crop: cut out a random square of relative side 1 - crop or more and resize it to the full image
    flip: mirror half of the images left to right
    """

    shift: int = 0
    crop: float = 0.0
    flip: bool = False

    def change_bytes(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Change images (B, C, H, W) before they are normalized; `order` (B,) holds their sample indices."""
        return self.shift_and_flip(images, order, key)

    def change_floats(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Change float images (B, C, H, W) after they were normalized."""
        return self.random_crop(images, order, key)

    def shift_and_flip(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Shift and flip images (B, C, H, W) of any dtype; `order` (B,) holds their sample indices."""
        if key is None or not (self.shift or self.flip):
            return images
        draws = uniform(key, order, 3)  # (3, B)
        if self.flip:
            images = _flipped(images, draws[0] < 0.5)
        if self.shift:
            (height, width), pad = images.shape[2:], (self.shift,) * 4
            windows = F.pad(images, pad).unfold(2, height, 1).unfold(3, width, 1)  # (B, C, 2s + 1, 2s + 1, H, W)
            down, right = (draws[1:] * (2 * self.shift + 1)).long()  # (B,) each
            images = windows[torch.arange(len(images)), :, down, right]  # (B, C, H, W)
        return images

    def random_crop(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Crop float images (B, C, H, W) and resize the crops to that shape."""
        if key is None or not self.crop:
            return images
        draws = uniform(key, order, 6)[3:]  # (3, B); the first three belong to `shift_and_flip`
        side = 1 - self.crop * draws[0]  # (B,)
        centre = (1 - side) * (2 * draws[1:] - 1)  # (2, B)
        theta = torch.zeros(len(images), 2, 3)
        theta[:, 0, 0] = theta[:, 1, 1] = side
        theta[:, :, 2] = centre.T
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)  # (B, H, W, 2)
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _flipped(images: Tensor, which: Tensor) -> Tensor:
    """Return images (B, C, H, W), those of the mask `which` (B,) mirrored left to right."""
    if not len(images) or images[0].numel() < LARGE:
        return torch.where(which[:, None, None, None], images.flip(-1), images)
    result = images.clone()
    for index in which.nonzero()[:, 0].tolist():  # a tenth of the time of `where` for photographs
        result[index] = images[index].flip(-1)
    return result
