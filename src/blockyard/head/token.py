"""Token head: one answer for each token; may share the table of symbols.

Source: Press and Wolf 2017, Using the Output Embedding to Improve Language Models (arXiv 1608.05859), for tying;
    Devlin et al. 2019, BERT (arXiv 1810.04805), whose code has the hidden layer
Reference: transformers GPT2LMHeadModel.lm_head, BertLMPredictionHead
Equation: W x_t, with W the embedder's table where tied; with a hidden layer W norm(activation(U x_t + b))
Cost: O(N D V) time, V D parameters unless tied
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from blockyard.channel_mixer._activation import ACTIVATIONS
from blockyard.contracts import Context, Embedder, Head, Seq
from blockyard.norm.layer import Layer
from blockyard.ops.linear import linear


class Token(Head):
    """Leaves prefix tokens out. Starts small (init_std).

    Options:
        tied: share the embedder's table of symbols instead of having weights of its own
        bias: a bias for each output
        hidden: activation of a layer of model.dim channels before the outputs, with a layer norm after it;
            null is no such layer
    """

    gives: ClassVar[str] = "token"

    def __init__(
        self,
        ctx: Context,
        *,
        tied: bool = False,
        bias: bool = False,
        hidden: Literal["gelu", "gelu_tanh", "relu"] | None = None,
    ) -> None:
        super().__init__()
        if tied and ctx.tokens.vocabulary != ctx.outputs:
            raise ValueError(
                f"head.tied=true shares a table of {ctx.tokens.vocabulary} symbols, the head has {ctx.outputs} "
                "outputs; use head.tied=false"
            )
        self.tied = tied
        self.hidden = None if hidden is None else Hidden(ctx, ACTIVATIONS[hidden])
        self.proj = linear(ctx, ctx.dim, ctx.outputs, bias=bias)

    @classmethod
    def ties(cls, options: dict[str, Any]) -> bool:
        """Where tied, the embedder must have a table."""
        return bool(options.get("tied", False))

    def tie(self, embedder: Embedder) -> None:
        """Share the table, where tied. Raises ValueError where there is none, or of another shape."""
        if not self.tied:
            return
        if embedder.table is None or embedder.table.shape != self.proj.weight.shape:
            found = "none" if embedder.table is None else f"one of shape {tuple(embedder.table.shape)}"
            raise ValueError(
                f"head.tied=true needs a table of shape {tuple(self.proj.weight.shape)}, the tokenizer's embedder "
                f"has {found}; use head.tied=false"
            )
        self.proj.weight = embedder.table

    def forward(self, x: Tensor, seq: Seq) -> Tensor:
        """x (B, N, D) -> (B, N, V), prefix tokens left out of N."""
        x = x[:, seq.num_prefix :]
        return self.proj(x if self.hidden is None else self.hidden(x))  # (B, N, V)


class Hidden(nn.Module):
    """norm(activation(U x + b)), all of model.dim channels."""

    def __init__(self, ctx: Context, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.proj, self.activation = linear(ctx, ctx.dim, ctx.dim, bias=True), activation
        self.norm = Layer(ctx, eps=1e-12)  # BERT's

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        return self.norm(self.activation(self.proj(x)))
