"""Token head: one answer for each token; may share the table of symbols.

Source: Press and Wolf 2017, Using the Output Embedding to Improve Language Models (arXiv 1608.05859), for tying
Reference: transformers GPT2LMHeadModel.lm_head
Equation: W x_t, with W the embedder's table where tied
Cost: O(N D V) time, V D parameters unless tied
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from blockyard.contracts import Context, Embedder, Head, Seq
from blockyard.ops.linear import linear


class Token(Head):
    """Leaves prefix tokens out. Starts small (init_std).

    Options:
        tied: share the embedder's table of symbols instead of having weights of its own
        bias: a bias for each output
    """

    gives: ClassVar[str] = "token"

    def __init__(self, ctx: Context, *, tied: bool = False, bias: bool = False) -> None:
        super().__init__()
        if tied and ctx.tokens.vocabulary != ctx.outputs:
            raise ValueError(
                f"head.tied=true shares a table of {ctx.tokens.vocabulary} symbols, the head has {ctx.outputs} "
                "outputs; use head.tied=false"
            )
        self.tied = tied
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
        return self.proj(x[:, seq.num_prefix :])  # (B, N, V)
