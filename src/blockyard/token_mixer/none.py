"""No token mixing: each token is processed alone. With a pooling head, this is Deep Sets.

Source: Zaheer et al. 2017, Deep Sets (arXiv 1703.06114), theorem 2: functions of a set that such a sum can represent
Reference: timm models/metaformer.py with token_mixer Identity is the closest
Equation: nothing is added
Cost: nothing
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits
from blockyard.token_mixer._caches import EmptyCache
from blockyard.token_mixer._checks import check_call, check_context


class NoMixing(TokenMixer):
    """Adds nothing, so a block omits the branch and its norm.

    Tokens interact only in the head, and in layers with another mixer (`layers`). Without such layers a class token is
    refused: it would see nothing.

    Options:
    """

    empty: ClassVar[bool] = True
    traits = Traits(causal=True, padding=True, packing=True, prefix=False, equivariant=True)

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        check_context(self, ctx)

    def forward(self, x: Tensor, seq: Seq, cache: Any = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> zeros (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        return torch.zeros_like(x)

    def init_cache(self, batch_size: int) -> EmptyCache:
        """Return a cache that stores nothing."""
        return EmptyCache()
