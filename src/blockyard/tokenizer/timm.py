"""The feature map of any timm network as tokens: one for each place. A hybrid's stem, or a plain CNN.

Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words (arXiv 2010.11929), section 3.1, hybrid architecture
Reference: timm.create_model(features_only=True); timm layers/hybrid_embed.py
Equation: x_n = W f(image)_n + b, f the network up to `stage`
Cost: that of the network

With model=bare and head=mean_pool it is a convolutional classifier, with model=encoder a hybrid. Networks
with batch norm mix the images of a batch in training.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Embedder, Seq, Tokenizer, TokenSpec
from blockyard.ops.linear import Linear
from blockyard.tokenizer import _timm
from blockyard.tokenizer._grid import places
from blockyard.weight_init import Init


class Timm(Tokenizer):
    """Weights start as the library starts them, drawn from the run's seed.

    Options:
        name: of the network, as timm.list_models() gives it; one with feature maps
        stage: which of its feature maps, from 0; -1 is the last and smallest
        pretrained: start from trained weights, which timm takes from its cache or fetches
    """

    modality = "image"
    axes: ClassVar[int | None] = 2

    def __init__(self, *, name: str = "resnet10t", stage: int = -1, pretrained: bool = False) -> None:
        self.name, self.stage, self.pretrained = name, stage, pretrained

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token for each place of the map, on a grid of two axes. Imports timm."""
        if data.modality != "image":
            raise ValueError(f"this tokenizer reads images, the data gives {data.things}")
        channels, height, width = data.shape
        return TokenSpec(_timm.shape_of(self.name, channels, (height, width), self.stage)[1:])

    def embedder(self, ctx: Context) -> TimmEmbedder:
        """The network and a projection."""
        return TimmEmbedder(ctx, self)


class TimmEmbedder(Embedder):
    """A feature map, projected to D."""

    def __init__(self, ctx: Context, plan: Timm) -> None:
        super().__init__()
        channels, height, width = ctx.data.shape
        self.plan, self.channels, self.size = plan, channels, (height, width)
        self.network = self._make(pretrained=False)
        maps = _timm.shape_of(plan.name, channels, self.size, plan.stage)[0]
        self.proj = Linear(maps, ctx.dim, bias=True, std=ctx.init_std * maps**-0.5)

    def _make(self, *, pretrained: bool) -> nn.Module:
        what = {"features_only": True, "out_indices": (self.plan.stage,)}
        return _timm.make(self.plan.name, self.channels, self.size, pretrained=pretrained, **what)

    def init_weights(self, init: Init) -> None:
        """The network as timm starts it."""
        init.foreign("network", lambda: self._make(pretrained=self.plan.pretrained))

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Inputs (B, C, height, width), float, or uint8 which is divided by 255 -> x (B, N, D), Seq.

        Raises ValueError for images of other channels, and for what only rows of text have.
        """
        if lengths is not None or segment is not None or start:
            raise ValueError("an image is one full row of tokens; leave lengths, segment and cache out")
        if inputs.ndim != 4 or inputs.shape[1] != self.channels:
            raise ValueError(
                f"inputs of shape {tuple(inputs.shape)}: this model reads images of {self.channels} channels"
            )
        found = self.network(inputs / 255 if inputs.dtype == torch.uint8 else inputs)[0]  # (B, channels, rows, cols)
        index, coords = (t.to(found.device) for t in places(tuple(found.shape[2:])))
        x = self.proj(found.flatten(2).transpose(1, 2))  # (B, N, D)
        return x, Seq(index, coords.to(self.proj.weight.dtype), grid=tuple(found.shape[2:]))
