"""Each view of a set through one timm network: a token a view.

Source: Su et al. 2015, Multi-view Convolutional Neural Networks for 3D Shape Recognition (arXiv 1505.00880)
Reference: timm.create_model(num_classes=0)
Equation: x_w = W f(view_w) + b, f the network without its classifier
Cost: that of the network, W times

Networks with batch norm mix the views of a batch in training; views that pad a set are not among them.
"""

from __future__ import annotations

from torch import Tensor, nn

from blockyard.contracts import Context, DataSpec, Tokenizer, TokenSpec
from blockyard.ops.linear import Linear
from blockyard.tokenizer import _timm
from blockyard.tokenizer._views import ViewEmbedder, view_tokens
from blockyard.weight_init import Init


class ViewTimm(Tokenizer):
    """Weights start as the library starts them, drawn from the run's seed.

    Options:
        name: of the network, as timm.list_models() gives it
        pretrained: start from trained weights, which timm takes from its cache or fetches
    """

    modality = "views"

    def __init__(self, *, name: str = "resnet10t", pretrained: bool = False) -> None:
        self.name, self.pretrained = name, pretrained

    def spec(self, data: DataSpec) -> TokenSpec:
        """One token a view."""
        return view_tokens(data)

    def embedder(self, ctx: Context) -> ViewTimmEmbedder:
        """The network and a projection."""
        return ViewTimmEmbedder(ctx, self)


class ViewTimmEmbedder(ViewEmbedder):
    """What the network makes of a view before it would name a class, projected to D."""

    def __init__(self, ctx: Context, plan: ViewTimm) -> None:
        super().__init__(ctx)
        self.plan = plan
        self.network = self._make(pretrained=False)
        (width,) = _timm.shape_of(plan.name, self.shape[0], self.shape[1:], None)
        self.proj = Linear(width, ctx.dim, bias=True, std=ctx.init_std * width**-0.5)

    def _make(self, *, pretrained: bool) -> nn.Module:
        return _timm.make(self.plan.name, self.shape[0], self.shape[1:], pretrained=pretrained, num_classes=0)

    def init_weights(self, init: Init) -> None:
        """The network as timm starts it."""
        init.foreign("network", lambda: self._make(pretrained=self.plan.pretrained))

    def vectors(self, images: Tensor) -> Tensor:
        """(R, C, height, width) -> (R, D)."""
        return self.proj(self.network(images))  # (R, D)
