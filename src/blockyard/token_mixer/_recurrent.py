"""What the recurrent cells of torch share: their place in a block, directions, padding, documents, states."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual
from blockyard.token_mixer._apart import apart
from blockyard.token_mixer._declared import check_call, check_context
from blockyard.token_mixer._scan import backwards
from blockyard.token_mixer._state import StateCache


class Recurrent(TokenMixer):
    """Tokens in the order of the row, then a projection. In a bidirectional model half of the state runs from the end.

    Each document of a packed row starts from the state after the prefix, as if it were a row of its own.
    """

    traits: ClassVar[Traits] = Traits(causal=True, padding=True, packing=True, axes=frozenset({1, 2}))
    hidden_multiple: ClassVar[int] = 2  # one for each direction

    def __init__(self, ctx: Context, cell: Callable[..., nn.RNNBase], expansion: float, bias: bool) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        directions = 1 if ctx.causal else 2
        width = max(1, round(expansion * ctx.dim / directions))
        self.ahead = cell(ctx.dim, width, bias=bias, batch_first=True)
        self.back = None if ctx.causal else cell(ctx.dim, width, bias=bias, batch_first=True)
        self.proj_out = residual(ctx, width * directions, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        if cache is not None:
            return self.proj_out(self._after(x, cache))
        if seq.segment is not None:
            return self.proj_out(apart(x, seq, self._states))
        return self.proj_out(self._states(x, seq.valid))

    def train(self, mode: bool = True) -> Recurrent:
        """The cells stay in training mode, which changes nothing in them: cuDNN gives no gradient in any other."""
        super().train(mode)
        for cell in (self.ahead, self.back):
            if cell is not None:
                cell.train()
        return self

    def init_cache(self, batch_size: int) -> StateCache:
        """An empty state. Raises ValueError where outputs depend on the future."""
        if not self.causal:
            raise ValueError("a bidirectional model cannot decode from a cache; use model=decoder")
        return StateCache()

    def _states(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """States at every token of rows from their start, and from their end: (B, N, E)."""
        first, _ = self.ahead(x)
        if self.back is None:
            return first
        last, _ = self.back(backwards(x, valid))
        return torch.cat([first, backwards(last, valid)], dim=-1)  # (B, N, E)

    def _after(self, x: Tensor, cache: StateCache) -> Tensor:
        """States of tokens that follow those of the cache: (B, N, E). torch keeps the batch second in a state."""
        before = None if cache.parts is None else tuple(part.transpose(0, 1).contiguous() for part in cache.parts)
        states, end = self.ahead(x, before[0] if before is not None and len(before) == 1 else before)
        parts = end if isinstance(end, tuple) else (end,)
        cache.store(*(part.transpose(0, 1) for part in parts))
        return states
