"""No mixing of tokens: each is read alone. With a head that pools, this is deep sets.

Source: Zaheer et al. 2017, Deep Sets (arXiv 1703.06114), theorem 2: what a sum over such tokens can say of a set
Reference: timm models/metaformer.py with token_mixer Identity is its nearest neighbour
Equation: nothing is added
Cost: nothing
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.token_mixer._declared import check_call, check_context


class NoMixing(TokenMixer):
    """Adds nothing, so that a block leaves out its branch and the norm of it.

    Tokens meet only in the head. A class token would see nothing, so there is none.

    Options:
    """

    empty: ClassVar[bool] = True
    traits: ClassVar[Traits] = Traits(causal=True, padding=True, packing=True, prefix=False, equivariant=True)

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        check_context(self, ctx)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> zeros (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return torch.zeros_like(x)

    def init_cache(self, batch_size: int) -> Nothing:
        """What has no past keeps nothing."""
        return Nothing()


class Nothing:
    """A cache of nothing."""

    bytes = 0
    kind = ""

    def reorder(self, order: Tensor) -> None:
        """Rows of nothing are all alike."""
