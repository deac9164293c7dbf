"""What image tokenizers share: rows and columns of patches, and their coordinates."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.contracts import Context, DataSpec, Embedder, Seq, TokenSpec


def patch_grid(data: DataSpec, size: int, name: str) -> TokenSpec:
    """The tokens of images cut into squares of side `size`. Raises ValueError where they do not fit."""
    if data.modality != "image":
        raise ValueError(f"this tokenizer reads images, the data gives {data.things}")
    height, width = data.shape[1:]
    if height % size or width % size:
        fits = [s for s in range(1, min(height, width) + 1) if height % s == 0 and width % s == 0]
        raise ValueError(
            f"{name}={size} does not divide the image of {height} x {width} pixels; "
            f"sizes that do: {', '.join(map(str, fits))}"
        )
    return TokenSpec((height // size, width // size))


class GridEmbedder(Embedder):
    """An embedder of full grids: knows the facts of its rows, subclasses make the vectors.

    The features of a token are the mean colour of its square, one number for each channel.
    Rows and columns are those of the images at hand, which may be larger than the model was built for.
    """

    def __init__(self, ctx: Context, size: int) -> None:
        super().__init__()
        self.size, self.channels = size, ctx.data.shape[0]
        self.grid = ctx.tokens.grid
        index, coords = places(self.grid)
        self.register_buffer("coords", coords, persistent=False)
        self.register_buffer("index", index, persistent=False)
        self.coords: Tensor
        self.index: Tensor

    def vectors(self, images: Tensor) -> Tensor:
        """Float images (B, C, height, width) -> (B, N, D), rows of the grid one after the other."""
        raise AssertionError("abstract")

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Inputs (B, C, height, width), float, or uint8 which is divided by 255 -> x (B, N, D), Seq.

        Raises ValueError for images that cannot be cut, and for what only rows of text have.
        """
        if lengths is not None or segment is not None or start:
            raise ValueError("an image is one full row of tokens; leave lengths, segment and cache out")
        grid = self._cut(inputs.shape)
        index, coords = self.index, self.coords
        if grid != self.grid:
            index, coords = (t.to(inputs.device) for t in places(grid))
            coords = coords.to(self.coords.dtype)
        images = inputs / 255 if inputs.dtype == torch.uint8 else inputs
        features = F.avg_pool2d(images, self.size).flatten(2).transpose(1, 2)  # (B, N, C), the mean colours
        return self.vectors(images), Seq(index, coords, grid=grid, features=features)

    def _cut(self, shape: torch.Size) -> tuple[int, int]:
        """Rows and columns of tokens in a batch of this shape. Raises ValueError where it does not fit."""
        if len(shape) != 4 or shape[1] != self.channels:
            raise ValueError(
                f"inputs of shape {tuple(shape)}: this model reads images of {self.channels} channels, "
                f"(batch, {self.channels}, height, width)"
            )
        height, width = shape[2:]
        if height % self.size or width % self.size or not height * width:
            near = " x ".join(str(max(self.size, side // self.size * self.size)) for side in (height, width))
            raise ValueError(
                f"an image of {height} x {width} pixels cannot be cut into squares of side {self.size}; legal "
                f"sizes are multiples of {self.size}, such as {near}"
            )
        return height // self.size, width // self.size


def places(grid: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Index (N,) int64 and coordinates (1, N, A) float of a full grid, row after row."""
    # On the meta device `torch.stack` would import the compiler, a second of every check; filling in does not.
    coords = torch.empty(*grid, len(grid))
    for axis, side in enumerate(grid):
        coords[..., axis] = torch.arange(side).view([-1 if other == axis else 1 for other in range(len(grid))])
    return torch.arange(math.prod(grid)), coords.flatten(0, -2)[None]
