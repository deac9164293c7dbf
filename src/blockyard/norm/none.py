"""No normalisation.

Source: Zhang et al. 2019, Fixup Initialization (arXiv 1901.09321), for training without one
Reference: torch.nn.Identity
Equation: x
Cost: nothing
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from blockyard.contracts import Context


class NoNorm(nn.Identity):
    """Return its input.

    Options:
    """

    empty: ClassVar[bool] = True

    def __init__(self, ctx: Context) -> None:
        super().__init__()
