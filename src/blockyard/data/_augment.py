"""Shift, flip and crop, vectorised: every random number is a hash of (key, sample, stream)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.data._hash import uniform


@dataclass(frozen=True)
class Augment:
    """What is done to a training image.

    shift: translation by up to so many pixels along each axis, filled with zeros
    crop: a square of side 1 - crop or more is cut at random and stretched back
    flip: left and right are swapped for half of the images
    """

    shift: int = 0
    crop: float = 0.0
    flip: bool = False

    def move(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Images (B, C, H, W) of any type, shifted and flipped; `order` (B,) are their numbers."""
        if key is None or not (self.shift or self.flip):
            return images
        draws = uniform(key, order, 3)  # (3, B)
        if self.flip:
            images = torch.where((draws[0] < 0.5)[:, None, None, None], images.flip(-1), images)
        if self.shift:
            reach, (height, width) = self.shift, images.shape[2:]
            places = F.pad(images, (reach, reach, reach, reach)).unfold(2, height, 1).unfold(3, width, 1)
            down, right = (draws[1:] * (2 * reach + 1)).long()  # (B,) each
            images = places[torch.arange(len(images)), :, down, right]  # (B, C, H, W)
        return images

    def resize(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Float images of `move`, cropped and stretched back; shape (B, C, H, W)."""
        if key is None or not self.crop:
            return images
        draws = uniform(key, order, 6)[3:]  # (3, B); the first three belong to `move`
        side = 1 - self.crop * draws[0]  # (B,)
        centre = (1 - side) * (2 * draws[1:] - 1)  # (2, B)
        theta = torch.zeros(len(images), 2, 3)
        theta[:, 0, 0] = theta[:, 1, 1] = side
        theta[:, :, 2] = centre.T
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)  # (B, H, W, 2)
        return F.grid_sample(images, grid, padding_mode="border", align_corners=False)
