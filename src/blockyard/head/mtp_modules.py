"""Modules of DeepSeek-V3 for later tokens: in training each has its own block, and reads the module before it.

Source: DeepSeek-AI 2024, DeepSeek-V3 Technical Report (arXiv 2412.19437), section 2.2, eq. 21 to 25
Reference: the equations, in the tests
Equation: h_i^k = block_k(M_k [norm(h_i^(k-1)); norm(E t_(i+k))]), with h^0 the input of the token head and E its table
    of token ids; logits of token i + k + 1 by the token head of norm(h_i^k), k = 1 .. further; weight times the mean of
    their cross entropies is added to the loss
Cost: in training `further` times that of a block, a map from 2 D to D and the token head; later that of the token head
    alone

    stream    x_0    x_1    x_2    x_3
    ids       t_0    t_1    t_2    t_3
    head      t_1    t_2    t_3    t_4       for predictions, metrics and generation
    k = 1     t_2    t_3    .      .         reads x_i and t_(i+1); the last token of a sequence is no input
    k = 2     t_3    .      .      .         reads h_i^1 and t_(i+2)

Its loss is logged as train/auxiliary. Token ids of padding, of other documents and beyond the outputs of the head have
no loss. The blocks are of the kind of the last layer, under its position scheme, and get only the stream of earlier
layers (no value residual). They are not used to draft tokens in generation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Batch, Block, Context, Embedder, NonNegative, Position, Seq, TokenMixer
from blockyard.contracts.inherited_options import with_options_of
from blockyard.head.multi_token import Further, loss_of_ids
from blockyard.head.token import Token
from blockyard.ops.linear import Linear
from blockyard.ops.ring import under


class AheadModule(nn.Module):
    """One module: forward(h, e, seq) -> (B, p + N, D). `final_norm` of it is the input of the token head."""

    def __init__(self, ctx: Context, block: Callable[[Context], Block], norm: Callable[[Context], nn.Module]) -> None:
        super().__init__()
        self.stream_norm = norm(ctx)
        self.token_norm = norm(ctx)
        # Twice as many inputs as other maps have.
        self.join = Linear(2 * ctx.dim, ctx.dim, bias=False, std=ctx.init_std * 2**-0.5, role="hidden")
        self.block = block(ctx)
        self.final_norm = norm(ctx) if self.block.needs_final_norm else nn.Identity()

    def forward(self, h: Tensor, e: Tensor, seq: Seq) -> Tensor:
        """h of the module before and vectors of later tokens e, both (B, p + N, D) -> (B, p + N, D)."""
        joined = self.join(torch.cat([self.stream_norm(h), self.token_norm(e)], dim=-1))  # (B, p + N, D)
        y: Tensor = self.block(joined, seq, None, None)
        return y


class MtpModules(Token):
    """For decoders of token ids.

    auxiliary: the weighted loss of the modules of the last forward pass in training

    Options:
        further: number of modules, each for one token after the next one
        weight: weight of the mean loss of modules, beside 1 of the next token; 0.3, later 0.1 in DeepSeek-V3
    """

    later_ids: ClassVar[bool] = True
    has_blocks: ClassVar[bool] = True

    @with_options_of(Token, only=("tied", "bias", "scale", "softcap"))
    def __init__(self, ctx: Context, *, further: Further = 1, weight: NonNegative = 0.3, **options: Any) -> None:
        super().__init__(ctx, **options)
        self.count = further
        self.weight = weight
        self.ahead: Any = nn.ModuleList()
        self.auxiliary: Tensor | None = None

    def tie(self, embedder: Embedder) -> None:
        """Tie as `Token` does, and keep the embedder: the modules read its table.

        Raises ValueError unless its table is as wide as the stream.
        """
        super().tie(embedder)
        if embedder.table is None or embedder.table.shape[1] != self.proj.in_features:
            raise ValueError(
                "head=mtp_modules reads the embedding table of token ids, as wide as the model; use a tokenizer of "
                "token ids without concatenated positions, or head=multi_token"
            )
        self._embedders = (embedder,)  # in a tuple, so that it is no submodule of the head

    def add_blocks(
        self,
        ctx: Context,
        block: Callable[[Context], Block],
        norm: Callable[[Context], nn.Module],
        position: Position,
    ) -> None:
        """Build the modules. Raises ValueError for a block that reads tensors of earlier layers: it has none."""
        last = replace(ctx.at(ctx.depth - 1), given={})
        self.ahead.extend(AheadModule(last, block, norm) for _ in range(self.count))
        takers = [part for part in self.ahead.modules() if isinstance(part, TokenMixer) and part.takes]
        if takers:
            raise ValueError(
                f"head=mtp_modules has blocks of its own, and token_mixer {type(takers[0]).__name__} reads what an "
                "earlier layer gives; leave the option out, or use head=multi_token"
            )
        self._positions = (position,)

    def forward(self, x: Tensor, seq: Seq) -> Any:
        """x (B, p + N, D) -> (B, N, V), without prefix tokens. In training the further loss is in `auxiliary`."""
        if self.training and torch.is_grad_enabled():
            self.auxiliary = self._further_loss(x, seq)
        return super().forward(x, seq)

    def _further_loss(self, x: Tensor, seq: Seq) -> Tensor:
        """Return the weighted mean loss of the modules. Raises ValueError without token ids, or without modules."""
        if seq.ids is None or not len(self.ahead):
            raise ValueError("head=mtp_modules needs a decoder that hands on the token ids of its sequence")
        p = seq.num_prefix
        module_seq = under(seq, self._positions[0])
        ids = seq.ids[:, -(x.shape[1] - p) :]  # (B, N)
        segment = None if seq.segment is None else seq.segment[:, p:]
        table = self._embedders[0].table
        scale = self._embedders[0].scale
        assert table is not None
        h = x
        total = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
        for number, module in enumerate(self.ahead, start=1):
            later = _ahead(ids, number, -1)  # (B, N)
            e = table[later.clamp(min=0, max=len(table) - 1)] * scale
            e = e.to(x.dtype).masked_fill((later < 0)[..., None], 0.0)  # (B, N, D)
            e = torch.cat([e.new_zeros(len(e), p, e.shape[-1]), e], dim=1)  # a prefix has no later tokens
            h = module(h, e, module_seq)  # (B, p + N, D)
            target = _ahead(ids, number + 1, -1)
            if segment is not None:
                target = target.masked_fill(_ahead(segment, number + 1, -1) != segment, -1)
            target = target.masked_fill((target < 0) | (target >= len(self.proj.weight)), Batch.ignore)
            total = total + loss_of_ids(self, module.final_norm(h)[:, p:], target)
        return total * (self.weight / self.count)


def _ahead(ids: Tensor, number: int, missing: int) -> Tensor:
    """Return the ids (B, N) `number` tokens later, `missing` at the end."""
    number = min(number, ids.shape[1])
    return torch.cat([ids[:, number:], ids.new_full((len(ids), number), missing)], dim=1)
