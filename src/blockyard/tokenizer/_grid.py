"""Shared parts of image tokenizers: grids of patches and their coordinates."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, DataSpec, Embedder, Seq, TokenSpec


def patch_grid(data: DataSpec, size: int, name: str) -> TokenSpec:
    """Returns the tokens of images cut into squares of side `size`. Raises ValueError if they do not fit."""
    if data.modality != "image":
        raise ValueError(f"this tokenizer reads images, the data gives {data.things}")
    height, width = data.shape[1:]
    if height % size or width % size:
        sizes = [s for s in range(1, min(height, width) + 1) if height % s == 0 and width % s == 0]
        raise ValueError(
            f"{name}={size} does not divide the image of {height} x {width} pixels; "
            f"sizes that do: {', '.join(map(str, sizes))}"
        )
    return TokenSpec((height // size, width // size), patch=(data.shape[0], size, size))


class GridEmbedder(Embedder):
    """Embeds full grids of patches; subclasses compute the vectors.

    The features of a token are the mean color of its square, one number per channel. The grid is that of
    the given images, which may be larger than the model was built for.
    """

    def __init__(self, ctx: Context, size: int) -> None:
        super().__init__()
        self.size, self.channels = size, ctx.data.shape[0]
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
        """Inputs (B, C, height, width), float, or uint8 which is divided by 255 -> x (B, N, D), Seq.

        Raises ValueError for images that `size` does not divide, and for arguments that only text has.
        """
        if lengths is not None or segment is not None or start:
            raise ValueError("an image is one full sequence of tokens; omit lengths, segment and cache")
        grid = self._grid_of(inputs.shape)
        index, coords = self.index, self.coords
        if grid != self.grid:
            index, coords = (t.to(inputs.device) for t in grid_coordinates(grid))
            coords = coords.to(self.coords.dtype)
        images = inputs / 255 if inputs.dtype == torch.uint8 else inputs
        features = F.avg_pool2d(images, self.size).flatten(2).transpose(1, 2)  # (B, N, C), the mean colors
        return self.vectors(images), Seq(index, coords, grid=grid, features=features)

    def _grid_of(self, shape: torch.Size) -> tuple[int, int]:
        """Returns the rows and columns of tokens in a batch of this shape. Raises ValueError if it does not fit."""
        if len(shape) != 4 or shape[1] != self.channels:
            raise ValueError(
                f"inputs of shape {tuple(shape)}: this model reads images of {self.channels} channels, "
                f"(batch, {self.channels}, height, width)"
            )
        height, width = shape[2:]
        if height % self.size or width % self.size or not height * width:
            near = " x ".join(str(max(self.size, side // self.size * self.size)) for side in (height, width))
            raise ValueError(
                f"an image of {height} x {width} pixels cannot be cut into squares of side {self.size}; "
                f"use multiples of {self.size}, such as {near}"
            )
        return height // self.size, width // self.size


def grid_coordinates(grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns the index (N,) int64 and the coordinates (1, N, A) float of a full grid, row by row."""
    # On the meta device `torch.stack` imports the compiler, which takes a second; assignment does not.
    coords = torch.empty(*grid, len(grid))
    for axis, side in enumerate(grid):
        coords[..., axis] = torch.arange(side).view([-1 if other == axis else 1 for other in range(len(grid))])
    return torch.arange(math.prod(grid)), coords.flatten(0, -2)[None]
