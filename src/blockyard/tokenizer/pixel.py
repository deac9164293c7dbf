"""Pixels as tokens.

Source: Chen et al. 2020, Generative Pretraining from Pixels (iGPT), without its color palette;
    Nguyen et al. 2024, An Image is Worth More Than 16x16 Patches (arXiv 2406.09415).
Reference: timm layers/patch_embed.py (PatchEmbed with patch_size=1)
Equation: x_n = W pixel_n + b
Cost: O(pixels C D) time; the model reads height x width tokens
"""

from __future__ import annotations

from blockyard.contracts import Context, DataSpec, Tokenizer, TokenSpec
from blockyard.tokenizer._grid import patch_grid
from blockyard.tokenizer.patch import PatchEmbedder


class Pixel(Tokenizer):
    """Projects the channels of each pixel to D."""

    modality = "image"
    gives_features = True

    def __init__(self) -> None:
        pass

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per pixel, on a grid with two axes."""
        return patch_grid(data, 1, "tokenizer.size")

    def embedder(self, ctx: Context) -> PatchEmbedder:
        """Build the linear projection of the channels."""
        return PatchEmbedder(ctx, 1)
