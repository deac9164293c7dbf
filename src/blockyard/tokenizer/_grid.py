"""What image tokenizers share: rows and columns of patches, and their coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from blockyard.contracts import Context, DataSpec, Embedder, Seq, TokenSpec


def patch_grid(data: DataSpec, size: int, name: str) -> TokenSpec:
    """The tokens of images cut into squares of side `size`. Raises ValueError where they do not fit."""
    if data.modality != "image":
        raise ValueError(f"this tokenizer reads images, the data gives {data.modality}s")
    height, width = data.shape[1:]
    if height % size or width % size:
        fits = [s for s in range(1, min(height, width) + 1) if height % s == 0 and width % s == 0]
        raise ValueError(
            f"{name}={size} does not divide the image of {height} x {width} pixels; "
            f"sizes that do: {', '.join(map(str, fits))}"
        )
    return TokenSpec((height // size, width // size))


class GridEmbedder(Embedder):
    """An embedder of full grids: knows the facts of its rows, subclasses make the vectors."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.grid = ctx.tokens.grid
        sides = [torch.arange(side) for side in self.grid]
        coords = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).reshape(1, -1, len(sides))  # (1, N, A)
        self.register_buffer("coords", coords.float(), persistent=False)
        self.register_buffer("index", torch.arange(coords.shape[1]), persistent=False)
        self.coords: Tensor
        self.index: Tensor

    def vectors(self, images: Tensor) -> Tensor:
        """Float images (B, C, height, width) -> (B, N, D), rows of the grid one after the other."""
        raise AssertionError("abstract")

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Inputs (B, C, height, width), float, or uint8 which is divided by 255 -> x (B, N, D), Seq."""
        assert (lengths, segment, start) == (None, None, 0), "an image is one full row of tokens"
        images = inputs / 255 if inputs.dtype == torch.uint8 else inputs
        return self.vectors(images), Seq(self.index, self.coords, grid=self.grid)
