"""Each view of a set through one small convolutional network: a token a view.

Source: Su et al. 2015, Multi-view Convolutional Neural Networks for 3D Shape Recognition (arXiv 1505.00880);
    as a set of tokens Lee et al. 2019, Set Transformer (arXiv 1810.00825)
Reference: none in timm or transformers
Equation: layers times [3x3 convolution, group norm, GELU], mean over places, W . + b
Cost: O(W pixels D^2) time

    views (W, C, h, w) --> the same network for each --> W tokens, which lie nowhere
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from blockyard.contracts import Context, Count, DataSpec, Tokenizer, TokenSpec
from blockyard.ops.linear import Linear
from blockyard.tokenizer._views import ViewEmbedder, view_tokens


class ViewCNN(Tokenizer):
    """No view sees another, not even in training: the norm is of one view alone.

    Options:
        layers: convolutions; each but the first halves the sides, and channels double up to D
    """

    modality = "views"

    def __init__(self, *, layers: Count = 2) -> None:
        self.layers = layers

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token a view."""
        return view_tokens(data)

    def embedder(self, ctx: Context) -> ViewCNNEmbedder:
        """The convolutions."""
        return ViewCNNEmbedder(ctx, self.layers)


class ViewCNNEmbedder(ViewEmbedder):
    """3x3 convolutions, their mean over places, a projection."""

    def __init__(self, ctx: Context, layers: int) -> None:
        super().__init__(ctx)
        widths = [self.shape[0], *(max(8, ctx.dim >> layers - n) for n in range(1, layers + 1))]
        parts: list[nn.Module] = []
        for number, (wide, wider) in enumerate(pairwise(widths)):
            convolution = nn.Conv2d(wide, wider, 3, stride=2 if number else 1, padding=1)
            parts += [convolution, nn.GroupNorm(1, wider), nn.GELU()]
        self.stem = nn.Sequential(*parts)
        self.proj = Linear(widths[-1], ctx.dim, bias=True, std=ctx.init_std * widths[-1] ** -0.5)

    def vectors(self, images: Tensor) -> Tensor:
        """(R, C, height, width) -> (R, D)."""
        return self.proj(self.stem(images).mean((-2, -1)))  # (R, D)
