"""The template of a model: how its parts are put together."""

from __future__ import annotations

from blockyard.commands.templates.shared import HEAD, PLAN_TEST_HEAD, PLAN_YAML, Template

MODEL = Template(
    HEAD
    + '''from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Depth, Heads, Parts, Positive, Width
from blockyard.model._prefix import NO_PREFIX
from blockyard.model._stack import Stack
from blockyard.model._transformer import Transformer


class CLASS(Stack):
    """An encoder whose predictions stay between -cap and cap.

    Options:
        dim: channels of a token (D)
        depth: blocks
        heads: heads of attention (H); must divide dim
        cap: the bound of the predictions
    """

    causal: ClassVar[bool] = False  # every token may see every other token

    def __init__(self, *, dim: Width = 64, depth: Depth = 4, heads: Heads = 4, cap: Positive = 30.0) -> None:
        super().__init__(dim=dim, depth=depth, heads=heads)
        self.cap = cap

    def build(self, ctx: Context, parts: Parts) -> nn.Module:
        """Return the model of `ctx`."""
        return CLASSTransformer(ctx, parts, cap=self.cap)


class CLASSTransformer(Transformer):
    """A transformer with bounded predictions."""

    def __init__(self, ctx: Context, parts: Parts, *, cap: float) -> None:
        super().__init__(ctx, parts, prefix=NO_PREFIX, dropout=0.0)
        self.cap = cap

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """As of `Transformer`: inputs -> (B, V) or (B, N, V)."""
        logits = super().forward(*args, **kwargs)
        return self.cap * torch.tanh(logits / self.cap)
''',
    PLAN_TEST_HEAD
    + """import torch
from torch.testing import assert_close

from blockyard.model._transformer import Transformer
from blockyard.verify import small_model


def test_the_formula() -> None:
    model = small_model(["model=NAME", "allow=[PACKAGE]"], ["CONF"])
    inputs = torch.tensor([[1, 2, 3, 4, 5, 6]])
    raised = (2 * Transformer.forward(model, inputs) / 30).exp()
    assert_close(model(inputs), 30 * (raised - 1) / (raised + 1))
""",
    bug=("torch.tanh(logits / self.cap)", "torch.tanh(2 * logits / self.cap)"),
    yaml=PLAN_YAML + "dim: 64\ndepth: 4\nheads: 4\ncap: 30.0\n",
    test_head="",
    verified=True,
)
