"""Shared parts of image tokenizers: grids of patches and their coordinates."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, DataSpec, Embedder, Seq, TokenSpec

Pad: TypeAlias = Literal["none", "right", "centre"]


def patch_grid(data: DataSpec, size: int, name: str, pad: Pad = "none") -> TokenSpec:
    """Return the tokens of images cut into squares of side `size`. Raises ValueError if they do not fit."""
    if data.modality != "image":
        raise ValueError(f"this tokenizer reads images, the data gives {data.things}")
    height, width = data.shape[1:]
    padding = padding_of(height, width, size, pad)
    if padding is None:
        sizes = [s for s in range(1, min(height, width) + 1) if height % s == 0 and width % s == 0]
        raise ValueError(
            f"{name}={size} does not divide the image of {height} x {width} pixels; "
            f"sizes that do: {', '.join(map(str, sizes))}; tokenizer.pad=right adds pixels until it does"
        )
    left, right, top, bottom = padding
    grid = ((top + height + bottom) // size, (left + width + right) // size)
    return TokenSpec(grid, patch=(data.shape[0], size, size), padding=padding if any(padding) else None)


def padding_of(height: int, width: int, size: int, pad: Pad) -> tuple[int, int, int, int] | None:
    """Return the pixels to add left, right, above and below, so that `size` divides both sides.

    Fewer than `size` are added along an axis, so that no patch is padding alone. None if pixels are missing and `pad`
    is none.
    """
    across = -width % size
    down = -height % size
    if pad == "none":
        return None if across or down else (0, 0, 0, 0)
    left, top = (across // 2, down // 2) if pad == "centre" else (0, 0)
    return left, across - left, top, down - top


class GridEmbedder(Embedder):
    """Embeds full grids of patches. Subclasses compute the vectors.

    The features of a token are the mean color of its square, one number per channel, without added pixels. Images may
    have a larger grid than the model was built for.
    """

    def __init__(self, ctx: Context, size: int, pad: Pad = "none") -> None:
        super().__init__()
        self.size = size
        self.pad = pad
        self.channels = ctx.data.shape[0]
        self.grid = ctx.tokens.grid
        index, coords = grid_coordinates(self.grid)
        self.register_buffer("coords", coords, persistent=False)
        self.register_buffer("index", index, persistent=False)
        self.coords: Tensor
        self.index: Tensor

    def vectors(self, images: Tensor) -> Tensor:
        """Float images (B, C, height, width) -> (B, N, D), row by row."""
        raise NotImplementedError

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Inputs (B, C, height, width), float, or uint8 to be divided by 255 -> x (B, N, D), Seq.

        Raises ValueError for images that do not fit, and for arguments that only text has.
        """
        if lengths is not None or segment is not None or start:
            raise ValueError("an image is one full sequence of tokens; omit lengths, segment and cache")
        padding = self._padding(inputs.shape)
        left, right, top, bottom = padding
        grid = ((top + inputs.shape[2] + bottom) // self.size, (left + inputs.shape[3] + right) // self.size)
        index, coords = self.index, self.coords
        if grid != self.grid:
            index, coords = (t.to(inputs.device) for t in grid_coordinates(grid))
            coords = coords.to(self.coords.dtype)
        images = inputs / 255 if inputs.dtype == torch.uint8 else inputs
        features = self._mean_colors(images, padding).flatten(2).transpose(1, 2)  # (B, N, C)
        padded = F.pad(images, padding) if any(padding) else images
        return self.vectors(padded), Seq(index, coords, grid=grid, features=features)

    def _mean_colors(self, images: Tensor, padding: tuple[int, int, int, int]) -> Tensor:
        """Return the mean color of each square without added pixels: (B, C, rows, columns)."""
        if not any(padding):
            return F.avg_pool2d(images, self.size)
        covered = F.avg_pool2d(
            F.pad(torch.ones_like(images[:1, :1]), padding), self.size
        )  # share of each square that the image covers
        return F.avg_pool2d(F.pad(images, padding), self.size) / covered

    def _padding(self, shape: torch.Size) -> tuple[int, int, int, int]:
        """Return the pixels to add to a batch of this shape. Raises ValueError for a shape that does not fit."""
        if len(shape) != 4 or shape[1] != self.channels:
            raise ValueError(
                f"inputs of shape {tuple(shape)}: this model reads images of {self.channels} channels, "
                f"(batch, {self.channels}, height, width)"
            )
        height, width = shape[2:]
        padding = padding_of(height, width, self.size, self.pad) if height * width else None
        if padding is None:
            near = " x ".join(str(max(self.size, side // self.size * self.size)) for side in (height, width))
            raise ValueError(
                f"an image of {height} x {width} pixels cannot be cut into squares of side {self.size}; "
                f"use multiples of {self.size}, such as {near}, or a model with tokenizer.pad=right"
            )
        return padding


def grid_coordinates(grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return the index (N,) int64 and the coordinates (1, N, A) float of a full grid, row by row."""
    # On the meta device `torch.stack` imports the compiler, which takes a second; assignment does not.
    coords = torch.empty(*grid, len(grid))
    for axis, side in enumerate(grid):
        shape = [1] * len(grid)
        shape[axis] = side
        coords[..., axis] = torch.arange(side).view(shape)
    return torch.arange(math.prod(grid)), coords.flatten(0, -2)[None]
