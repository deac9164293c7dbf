"""A few small strided convolutions in place of one large one: a convolutional stem.

Source: Xiao et al. 2021, Early Convolutions Help Transformers See Better (arXiv 2106.14881), section 4.
Reference: timm models/vision_transformer_hybrid.py (ConvStem)
Equation: log2(size) times [3x3 convolution of stride 2, batch norm, ReLU], then a 1x1 convolution to D
Cost: O(pixels D^2) time for the wider layers; one transformer block less pays for it in the paper

    size 4, width D    image -> D/2 channels, 1/2 side -> D channels, 1/4 side -> 1x1 -> D

A token sees a little of its neighbours' pixels. Batch norm mixes the images of a batch in training.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Tokenizer, TokenSpec
from blockyard.ops.linear import Linear
from blockyard.tokenizer._grid import GridEmbedder, patch_grid


class ConvPatch(Tokenizer):
    """A stem of stride-2 convolutions that halves the image until a token covers `size` pixels.

    Options:
        size: pixels per token and side, a power of two; must divide height and width
    """

    modality = "image"
    gives_features = True

    def __init__(self, *, size: Literal[2, 4, 8, 16, 32] = 4) -> None:
        self.size = size

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token per `size` x `size` pixels, on a grid of two axes."""
        return patch_grid(data, self.size, "tokenizer.size")

    def embedder(self, ctx: Context) -> ConvPatchEmbedder:
        """The convolutions."""
        return ConvPatchEmbedder(ctx, self.size)


class ConvPatchEmbedder(GridEmbedder):
    """Stride-2 convolutions whose channels double up to D, then a projection."""

    def __init__(self, ctx: Context, size: int) -> None:
        super().__init__(ctx, size)
        halvings = size.bit_length() - 1
        widths = [ctx.data.shape[0], *(max(8, ctx.dim >> halvings - i) for i in range(1, halvings + 1))]
        layers: list[nn.Module] = []
        for wide, wider in pairwise(widths):
            layers += [
                nn.Conv2d(wide, wider, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(wider),
                nn.ReLU(),
            ]
        self.stem = nn.Sequential(*layers)
        # The 1x1 convolution, written as what it is.
        self.proj = Linear(widths[-1], ctx.dim, bias=True, std=ctx.init_std * widths[-1] ** -0.5)

    def vectors(self, images: Tensor) -> Tensor:
        """(B, C, height, width) -> (B, N, D)."""
        maps = self.stem(images)  # (B, channels, rows, cols)
        return self.proj(maps.flatten(2).transpose(1, 2))  # (B, N, D)
