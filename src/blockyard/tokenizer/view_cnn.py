"""A small convolutional network that maps each view of a set to a token.

Source: Su et al. 2015, Multi-view Convolutional Neural Networks for 3D Shape Recognition (arXiv 1505.00880);
    as a set of tokens Lee et al. 2019, Set Transformer (arXiv 1810.00825)
Reference: none in timm or transformers
Equation: layers times [3x3 convolution, group norm, GELU], mean over positions, W . + b
Cost: O(W pixels D^2) time

    views (W, C, h, w) --> the same network for each --> W tokens, without positions
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from annotated_types import Ge, Le
from torch import Tensor, nn

from blockyard.contracts import Because, Context, DataSpec, Tokenizer, TokenSpec, with_roles
from blockyard.ops.linear import Linear
from blockyard.tokenizer._views import ViewEmbedder, view_tokens

Layers = Annotated[int, Ge(1), Le(16), Because("every layer but the first halves the sides of an image")]


class ViewCNN(Tokenizer):
    """Views are independent even in training: the norm runs over one view alone.

    Options:
        layers: number of convolutions; each but the first halves the sides, and the channels double up to D
    """

    modality = "views"

    def __init__(self, *, layers: Layers = 2) -> None:
        self.layers = layers

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per view."""
        return view_tokens(data)

    def embedder(self, ctx: Context) -> ViewCNNEmbedder:
        """Build the convolutions."""
        return ViewCNNEmbedder(ctx, self.layers)


class ViewCNNEmbedder(ViewEmbedder):
    """3x3 convolutions, their mean over positions, and a projection."""

    def __init__(self, ctx: Context, layers: int) -> None:
        super().__init__(ctx)
        widths = [self.shape[0], *(max(8, ctx.dim >> layers - n) for n in range(1, layers + 1))]
        stem: list[nn.Module] = []
        for number, (in_channels, out_channels) in enumerate(pairwise(widths)):
            convolution = nn.Conv2d(in_channels, out_channels, 3, stride=2 if number else 1, padding=1)
            with_roles(convolution, weight="hidden" if number else "input")
            stem += [convolution, nn.GroupNorm(1, out_channels), nn.GELU()]
        self.stem = nn.Sequential(*stem)
        self.proj = Linear(widths[-1], ctx.dim, bias=True, std=ctx.input_std * widths[-1] ** -0.5, role="hidden")

    def vectors(self, images: Tensor) -> Tensor:
        """(R, C, height, width) -> (R, D)."""
        return self.proj(self.stem(images).mean((-2, -1)))  # (R, D)
