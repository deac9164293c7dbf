"""Learned positions: one free vector per place, added to the token or put beside it.

Source: Gehring et al. 2017, Convolutional Sequence to Sequence Learning (arXiv 1705.03122), section 3.1; resizing as
    in Dosovitskiy et al. 2021, An Image is Worth 16x16 Words (arXiv 2010.11929), section 3.2
Reference: timm models/vision_transformer.py, pos_embed; transformers GPT2Model.wpe
Equation: x_t + table[coords_t], linear between neighbouring places
Cost: O(N D) time, one parameter per place and channel
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from blockyard.contracts import Context, Count, NonNegative
from blockyard.position._absolute import Absolute, Combine, code_width
from blockyard.position._axes import check_axes
from blockyard.weight_init import Init


class Learned(Absolute):
    """A table over the grid of tokens. Coordinates between places are interpolated.

    A full grid larger than the table is squeezed onto it by the model, so that inputs longer than
    those of training are interpolated; beyond its edge the table knows nothing. A causal row cannot
    be squeezed by its own length, which its first tokens do not know: see `beyond`.

    Options:
        std: spread of the initial vectors; null means the model's init_std
        combine: add the vectors to all channels of a token, or give them channels of their own
        width: channels of a concatenated code; null means a quarter of model.dim
        beyond: rows longer than the table, where an evaluation asks for them (trainer.extrapolate): refused, or
            squeezed onto it by the factor of that evaluation
    """

    bounded: ClassVar[bool] = True
    length_advice: ClassVar[str] = "position.beyond=interpolate squeezes the row onto them"

    def __init__(
        self,
        ctx: Context,
        *,
        std: NonNegative | None = None,
        combine: Combine = "add",
        width: Count | None = None,
        beyond: Literal["refuse", "interpolate"] = "refuse",
    ) -> None:
        check_axes(type(self), ctx)
        super().__init__(ctx, combine=combine, channels=code_width("learned", ctx, combine, width))
        self.grid, self.std = ctx.tokens.grid, std
        self.beyond = beyond
        self.table = nn.Parameter(torch.empty(ctx.tokens.max_len, self.channels))  # (N, channels), in grid order

    @property
    def scales_length(self) -> bool:
        """Where `beyond` says so."""
        return self.beyond == "interpolate"

    def init_weights(self, init: Init) -> None:
        """Normal vectors."""
        init.normal("table", std=self.std)

    def code(self, coords: Tensor, like: Tensor) -> Tensor:
        """Vectors of coords (B|1, N, A): (B|1, N, channels)."""
        low, share = [], []
        for axis, side in enumerate(self.grid):
            place = coords[..., axis].clamp(0, side - 1)  # (B|1, N)
            floor = place.floor().clamp(max=max(side - 2, 0))
            low.append(floor.long())
            share.append((place - floor).to(self.table.dtype))
        out = torch.zeros((), dtype=self.table.dtype, device=like.device)
        for corner in product((0, 1), repeat=len(self.grid)):
            row = torch.zeros_like(low[0])
            weight = torch.ones_like(share[0])
            for axis, step in enumerate(corner):
                side = self.grid[axis]
                row = row * side + (low[axis] + step).clamp(max=side - 1)
                weight = weight * (share[axis] if step else 1 - share[axis])
            out = out + weight[..., None] * self.table[row]  # (B|1, N, channels)
        return out
