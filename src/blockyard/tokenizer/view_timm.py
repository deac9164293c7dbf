"""A timm network that maps each view of a set to a token.

Source: Su et al. 2015, Multi-view Convolutional Neural Networks for 3D Shape Recognition (arXiv 1505.00880)
Reference: timm.create_model(num_classes=0)
Equation: x_w = W f(view_w) + b, f the network without its classifier
Cost: that of the network, W times

In training, networks with batch norm mix the views of a batch, without the padded ones.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Role, Text, Tokenizer, TokenSpec
from blockyard.ops.linear import Linear
from blockyard.tokenizer import _timm
from blockyard.tokenizer._views import ViewEmbedder, view_tokens
from blockyard.weight_init import Init


class ViewTimm(Tokenizer):
    """Weights are initialized by timm, with the run's seed.

    Options:
        name: name of the network, see timm.list_models()
        pretrained: load pretrained weights, which timm caches or downloads
    """

    modality = "views"

    def __init__(self, *, name: Text = "resnet10t", pretrained: bool = False) -> None:
        self.name = name
        self.pretrained = pretrained

    def spec(self, data: DataSpec) -> TokenSpec:
        """Return one token per view."""
        return view_tokens(data)

    def embedder(self, ctx: Context) -> ViewTimmEmbedder:
        """Build the network and a projection."""
        return ViewTimmEmbedder(ctx, self)


class ViewTimmEmbedder(ViewEmbedder):
    """Projects the network's features of a view, before its classifier, to D."""

    roles: ClassVar[dict[str, Role]] = {"network": "fixed"}

    def __init__(self, ctx: Context, config: ViewTimm) -> None:
        super().__init__(ctx)
        self.config = config
        self.network = self._make(pretrained=False)
        (width,) = _timm.output_shape(config.name, self.shape[0], self.shape[1:], None)
        self.proj = Linear(width, ctx.dim, bias=True, std=ctx.input_std * width**-0.5, role="input")

    def _make(self, *, pretrained: bool) -> nn.Module:
        return _timm.make(self.config.name, self.shape[0], self.shape[1:], pretrained=pretrained, num_classes=0)

    def init_weights(self, init: Init) -> None:
        """Initialise the network as timm does."""
        init.foreign("network", lambda: self._make(pretrained=self.config.pretrained))

    def vectors(self, images: Tensor) -> Tensor:
        """(R, C, height, width) -> (R, D)."""
        return self.proj(self.network(images))  # (R, D)
