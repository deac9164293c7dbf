"""Views that are whole images, each moved, with another contrast and noise; every number is drawn beforehand.

Source: Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations (SimCLR,
    arXiv 2002.05709), section 3, for sets of random data augmentations
Reference: torchvision.transforms.functional.affine
Equation: view(p) = contrast * image(A p + shift) + noise, with A a rotation over a scale
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import functional as F

from blockyard.data._hash import normal

# The largest changes, at strength 1; each draw is uniform between both signs of its own.
ANGLE, SCALE, SHIFT, CONTRAST = math.radians(45), 0.4, 0.25, 0.5  # radians, share, share of the side, share
NOISE = 0.5  # standard deviations of the training images
MOVES = 5  # draws of a view besides its noise


def draws_of_view(channels: int, side: int) -> int:
    """Returns the uniform numbers that a view takes: one to flip, its moves, two for the noise of each value."""
    return 1 + MOVES + 2 * channels * side * side


def augmented_views(images: Tensor, draws: Tensor, side: int, strength: float) -> Tensor:
    """Images (B, C, height, width) -> (B, W, C, side, side); beyond its edge an image goes on as it ends.

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
