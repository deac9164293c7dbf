"""The feature map of any timm network, one token per position: the stem of a hybrid, or a plain CNN.

Source: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words (arXiv 2010.11929), section 3.1, hybrid architecture
Reference: timm.create_model(features_only=True); timm layers/hybrid_embed.py
Equation: x_n = W f(image)_n + b, f the network up to `stage`
Cost: that of the network

With model=bare and head=mean_pool this is a convolutional classifier, with model=encoder a hybrid. In
training, networks with batch norm mix the images of a batch.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from blockyard.contracts import Because, Context, DataSpec, Embedder, Role, Seq, Text, Tokenizer, TokenSpec
from blockyard.ops.linear import Linear
from blockyard.tokenizer import _timm
from blockyard.tokenizer._grid import grid_coordinates
from blockyard.weight_init import Init

Stage = Annotated[int, Ge(-1_000), Le(999), Because("no network has a thousand feature maps")]


class Timm(Tokenizer):
    """Weights are initialized by timm, with the run's seed.

    Options:
        name: name of a network with feature maps, see timm.list_models()
        stage: index of the feature map, from 0; -1 is the last and smallest
        pretrained: load pretrained weights, which timm caches or downloads
    """

    modality = "image"
    axes: ClassVar[int | None] = 2

    def __init__(self, *, name: Text = "resnet10t", stage: Stage = -1, pretrained: bool = False) -> None:
        self.name = name
        self.stage = stage
        self.pretrained = pretrained

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per position of the feature map, on a grid with two axes. Imports timm."""
        if data.modality != "image":
            raise ValueError(f"this tokenizer reads images, the data gives {data.things}")
        channels, height, width = data.shape
        return TokenSpec(_timm.output_shape(self.name, channels, (height, width), self.stage)[1:], causal=False)

    def embedder(self, ctx: Context) -> TimmEmbedder:
        """Build the network and a projection."""
        return TimmEmbedder(ctx, self)


class TimmEmbedder(Embedder):
    """Projects a feature map to D."""

    roles: ClassVar[dict[str, Role]] = {"network": "fixed"}

    def __init__(self, ctx: Context, config: Timm) -> None:
        super().__init__()
        channels, height, width = ctx.data.shape
        self.config = config
        self.channels = channels
        self.size = (height, width)
        self.network = self._make(pretrained=False)
        channels_out = _timm.output_shape(config.name, channels, self.size, config.stage)[0]
        self.proj = Linear(channels_out, ctx.dim, bias=True, std=ctx.input_std * channels_out**-0.5, role="input")

    def _make(self, *, pretrained: bool) -> nn.Module:
        options = {"features_only": True, "out_indices": (self.config.stage,)}
        return _timm.make(self.config.name, self.channels, self.size, pretrained=pretrained, **options)

    def init_weights(self, init: Init) -> None:
        """Initialise the network as timm does."""
        init.foreign("network", lambda: self._make(pretrained=self.config.pretrained))

    def forward(
        self, inputs: Tensor, lengths: Tensor | None = None, segment: Tensor | None = None, start: int = 0
    ) -> tuple[Tensor, Seq]:
        """Inputs (B, C, height, width), float, or uint8 to be divided by 255 -> x (B, N, D), Seq.

        Raises ValueError for images of other channels, and for arguments that only text has.
        """
        if lengths is not None or segment is not None or start:
            raise ValueError("an image is one full sequence of tokens; omit lengths, segment and cache")
        if inputs.ndim != 4 or inputs.shape[1] != self.channels:
            raise ValueError(
                f"inputs of shape {tuple(inputs.shape)}: this model reads images of {self.channels} channels"
            )
        features = self.network(inputs / 255 if inputs.dtype == torch.uint8 else inputs)[0]  # (B, channels, rows, cols)
        index, coords = (t.to(features.device) for t in grid_coordinates(tuple(features.shape[2:])))
        x = self.proj(features.flatten(2).transpose(1, 2))  # (B, N, D)
        return x, Seq(index, coords.to(self.proj.weight.dtype), grid=tuple(features.shape[2:]))
