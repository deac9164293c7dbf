"""Square patches of an image, flattened and projected: the tokens of a Vision Transformer.

Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words (arXiv 2010.11929), eq. 1.
Reference: timm layers/patch_embed.py (PatchEmbed)
Equation: x_n = W flatten(patch_n) + b, the same as a convolution of kernel and stride `size`
Cost: O(pixels C D) time

    +--+--+
    |0 |1 |    the grid row by row; within a patch: channel, row, column
    +--+--+
    |2 |3 |
    +--+--+
"""

from __future__ import annotations

from torch import Tensor

from blockyard.contracts import Context, DataSpec, Side, Tokenizer, TokenSpec
from blockyard.ops.linear import Linear
from blockyard.tokenizer._grid import GridEmbedder, Pad, patch_grid


class Patch(Tokenizer):
    """Cuts images into square patches.

    Options:
        size: side of a patch in pixels; must divide height and width, unless `pad` adds pixels
        pad: add zeros until it does: below and on the right (right), or all around (centre), an odd pixel below and on
            the right; none refuses such images
    """

    modality = "image"
    gives_features = True

    def __init__(self, *, size: Side = 4, pad: Pad = "none") -> None:
        self.size: int = size
        self.pad: Pad = pad

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per patch, on a grid with two axes."""
        return patch_grid(data, self.size, "tokenizer.size", self.pad)

    def embedder(self, ctx: Context) -> PatchEmbedder:
        """Build the linear projection of flattened patches."""
        return PatchEmbedder(ctx, self.size, self.pad)


class PatchEmbedder(GridEmbedder):
    """Flattens patches and projects them to D."""

    def __init__(self, ctx: Context, size: int, pad: Pad = "none") -> None:
        super().__init__(ctx, size, pad)
        pixels = ctx.data.shape[0] * size * size
        self.proj = Linear(pixels, ctx.dim, bias=True, std=ctx.input_std * pixels**-0.5, role="input")

    def vectors(self, images: Tensor) -> Tensor:
        """(B, C, height, width) -> (B, N, D)."""
        batch, channels, height, width = images.shape
        size = self.size
        rows, cols = height // size, width // size
        patches = images.reshape(batch, channels, rows, size, cols, size)
        flat = patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * cols, -1)  # (B, N, C * size * size)
        return self.proj(flat)  # (B, N, D)
