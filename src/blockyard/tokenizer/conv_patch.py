"""A convolutional stem: a few small strided convolutions instead of a single large one.

Source: Xiao et al. 2021, Early Convolutions Help Transformers See Better (arXiv 2106.14881), section 4.
Reference: timm models/vision_transformer_hybrid.py (ConvStem)
Equation: log2(size) times [3x3 convolution of stride 2, batch norm, ReLU], then a 1x1 convolution to D
Cost: O(pixels D^2) time for the wider layers; the paper makes up for it with one transformer block less

    size 4, width D    image -> D/2 channels, 1/2 side -> D channels, 1/4 side -> 1x1 -> D

A token also sees some of its neighbours' pixels. In training, batch norm mixes the images of a batch.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Tokenizer, TokenSpec, with_roles
from blockyard.ops.linear import Linear
from blockyard.tokenizer._grid import GridEmbedder, Pad, patch_grid


class ConvPatch(Tokenizer):
    """Stride-2 convolutions that halve the image until a token covers `size` x `size` pixels.

    Options:
        size: side of a token in pixels, a power of two; must divide height and width, unless `pad` adds pixels
        pad: add zeros until it does: below and on the right (right), or all around (centre), an odd pixel below and on
            the right; none refuses such images
    """

    modality = "image"
    gives_features = True

    def __init__(self, *, size: Literal[2, 4, 8, 16, 32] = 4, pad: Pad = "none") -> None:
        self.size: int = size
        self.pad: Pad = pad

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per `size` x `size` pixels, on a grid with two axes."""
        # Batch norm and overlapping convolutions carry neighbours into a token.
        return replace(patch_grid(data, self.size, "tokenizer.size", self.pad), causal=False)

    def embedder(self, ctx: Context) -> ConvPatchEmbedder:
        """Build the convolutions."""
        return ConvPatchEmbedder(ctx, self.size, self.pad)


class ConvPatchEmbedder(GridEmbedder):
    """Stride-2 convolutions with channels that double up to D, then a projection."""

    def __init__(self, ctx: Context, size: int, pad: Pad = "none") -> None:
        super().__init__(ctx, size, pad)
        halvings = size.bit_length() - 1
        widths = [ctx.data.shape[0], *(max(8, ctx.dim >> halvings - i) for i in range(1, halvings + 1))]
        layers: list[nn.Module] = []
        for in_channels, out_channels in pairwise(widths):
            convolution = nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1, bias=False)
            # The first convolution reads pixels: its inputs do not grow with the width of the model.
            with_roles(convolution, weight="hidden" if layers else "input")
            layers += [convolution, nn.BatchNorm2d(out_channels), nn.ReLU()]
        self.stem = nn.Sequential(*layers)
        # A 1x1 convolution, applied to the flattened grid.
        self.proj = Linear(widths[-1], ctx.dim, bias=True, std=ctx.input_std * widths[-1] ** -0.5, role="hidden")

    def vectors(self, images: Tensor) -> Tensor:
        """(B, C, height, width) -> (B, N, D)."""
        maps = self.stem(images)  # (B, channels, rows, cols)
        return self.proj(maps.flatten(2).transpose(1, 2))  # (B, N, D)
