"""No positions (NoPE): tokens are a set, unless the mixer itself depends on their order.

Source: Kazemnejad et al. 2023, The Impact of Positional Encoding on Length Generalization (arXiv 2305.19466)
Reference: the scheme called NoPE there
Equation: nothing
Cost: nothing
"""

from __future__ import annotations

from typing import ClassVar

from blockyard.contracts import Context, Position


class NoPosition(Position):
    """Leaves tokens, queries, keys and scores unchanged.

    Options:
    """

    axes: ClassVar[frozenset[int]] = frozenset({0, 1, 2})
    relative: ClassVar[bool] = True

    def __init__(self, ctx: Context) -> None:
        super().__init__()
