"""Multi-token heads: a token head, and in training further ones for the tokens after the next one.

Source: Gloeckle et al. 2024, Better & Faster Large Language Models via Multi-token Prediction (arXiv 2404.19737),
    section 2, heads in parallel on one trunk with shared outputs; as residual layers Cai et al. 2024, Medusa
    (arXiv 2401.10774), section 2.1.1
Reference: the formula, in the tests; FasterDecoding/Medusa
Equation: the next token by W x_n; token n + 1 + k, k = 1 .. further, by W h_k with h_k = x_n + silu(U_k x_n + b_k);
    weight times the mean of the further cross entropies is added to the loss
Cost: in training `further` times that of the token head, and D^2 + D parameters each; later that of the token head

    stream      x_0  x_1  x_2  x_3
    token head   1    2    3    4       for predictions, metrics and generation
    k = 1        2    3    .    .       token ids come from the inputs, so the last token of a sequence is left out

Its loss is logged as train/auxiliary. Token ids of padding, of other documents and beyond the outputs of the head have
no loss.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Batch, Because, Context, NonNegative, Seq
from blockyard.contracts.inherited_options import with_options_of
from blockyard.head.token import Token
from blockyard.objective._cross_entropy import chunked_cross_entropy, cross_entropy
from blockyard.ops.linear import linear
from blockyard.ops.projection import Projection, defers, leaves_raw

Further = Annotated[int, Ge(1), Le(64), Because("each is a head with a loss over all token ids")]


class MultiToken(Token):
    """For causal models of token ids. Before training h_k is near x_n.

    auxiliary: the weighted loss of the further heads of the last forward pass in training

    Options:
        further: number of tokens after the next one, each with a further head
        weight: weight of the mean loss of further heads, beside 1 of the next token
    """

    later_ids: ClassVar[bool] = True

    @with_options_of(Token, only=("tied", "bias", "scale", "softcap"))
    def __init__(self, ctx: Context, *, further: Further = 3, weight: NonNegative = 1.0, **options: Any) -> None:
        super().__init__(ctx, **options)
        if not ctx.causal or ctx.tokens.vocabulary is None:
            raise ValueError(
                "head=multi_token predicts the ids of later tokens, for which the model must be causal and read token "
                "ids; use model=decoder, or head=token"
            )
        self.weight = weight
        self.further = nn.ModuleList(linear(ctx, ctx.dim, ctx.dim, bias=True) for _ in range(further))
        self.auxiliary: Tensor | None = None

    def forward(self, x: Tensor, seq: Seq) -> Any:
        """x (B, N, D) -> (B, N, V), without prefix tokens. In training the further losses are in `auxiliary`."""
        if self.training and torch.is_grad_enabled():
            self.auxiliary = self._further_loss(x[:, seq.num_prefix :], seq)
        return super().forward(x, seq)

    def _further_loss(self, x: Tensor, seq: Seq) -> Tensor:
        """Return the weighted mean loss of the further heads, on x (B, N, D). Raises ValueError without token ids."""
        if seq.ids is None:
            raise ValueError("head=multi_token needs the token ids of its sequence, which this model does not hand on")
        ids = seq.ids[:, -x.shape[1] :]  # (B, N)
        segment = None if seq.segment is None else seq.segment[:, -x.shape[1] :]
        ids = ids.masked_fill((ids < 0) | (ids >= len(self.proj.weight)), Batch.ignore)
        total = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
        for number, layer in enumerate(self.further, start=2):
            target = ids[:, number:]  # (B, N - number)
            if not target.shape[1]:  # in distributed training every head must have a gradient
                total = total + 0.0 * layer(x).sum()
                continue
            if segment is not None:
                target = target.masked_fill(segment[:, number:] != segment[:, :-number], Batch.ignore)
            h = x[:, : target.shape[1]]  # (B, N - number, D)
            total = total + loss_of_ids(self, h + F.silu(layer(h)), target)
        return total * (self.weight / len(self.further))


def loss_of_ids(head: Token, h: Tensor, target: Tensor) -> Tensor:
    """Return the loss of the outputs of a token head, without its hidden layer, on h (B, N, D).

    target: (B, N) ids, or `Batch.ignore`; without any id the loss is zero
    """
    h = h * head.proj.factor
    projection = Projection(h, head.proj.weight, head.proj.bias, head.scale, head.softcap)
    if defers(h, len(head.proj.weight)):  # the loss of the next token is then computed by chunks too
        loss = chunked_cross_entropy(projection, target)
    elif leaves_raw(h, len(head.proj.weight)):
        loss = cross_entropy(projection.raw_logits(), target)
    else:
        loss = cross_entropy(projection.logits(), target)
    # A mean over no target is NaN.
    return torch.where((target != Batch.ignore).any(), loss, torch.zeros_like(loss))
