"""What a position scheme knows of each position: codes that it adds, and scores that it changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Position
from blockyard.errors import UserError
from blockyard.tokenizer._grid import grid_coordinates

MOST = 256  # positions that are shown, the first ones


@dataclass(frozen=True)
class PositionCodes:
    """What one scheme does.

    grid: the layout of the positions, as many as are shown
    codes: (N, channels), what it adds to tokens or appends to them; None where it does neither
    tables: (H, N, N) by name: `bias`, what is added to the score of query i and key j, and `rotation`, what rotating
        equal queries and keys leaves of their product, from 1
    """

    name: str
    grid: tuple[int, ...]
    codes: Tensor | None
    tables: dict[str, Tensor]

    def similarity(self) -> Tensor | None:
        """The cosine of the codes of each pair of positions (N, N), without their mean; None without codes."""
        if self.codes is None:
            return None
        centred = self.codes - self.codes.mean(0)
        unit = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return (unit @ unit.T).clamp(-1, 1)


@torch.no_grad()
def position_codes(model: nn.Module) -> PositionCodes:
    """Returns what the position scheme of a model does. Raises UserError where it has none to show."""
    parts: Any = model
    scheme = getattr(model, "position", None)
    if not isinstance(scheme, Position) or not scheme.acts_on:
        raise UserError("positions: this model has no position scheme (position=none)")
    tokens, name = parts.ctx.tokens, type(scheme).__name__
    if not tokens.grid or not scheme.acts_on & {"embed", "rotate", "bias"}:
        raise UserError(f"positions: {name} reads facts that differ from sample to sample, not positions")
    scheme = scheme.double()
    rows = max(1, MOST // tokens.grid[1]) if tokens.axes == 2 else MOST
    grid = (min(tokens.grid[0], rows), *tokens.grid[1:])
    coords = grid_coordinates(grid)[1].double()  # (1, N, A), row by row
    count = coords.shape[1]
    codes = None
    if "embed" in scheme.acts_on:
        without = torch.zeros(1, count, parts.ctx.dim - scheme.width, dtype=torch.float64)
        codes = scheme.embed(without, coords)[0][:, -scheme.width :]  # (N, channels); of an added code all of them
    tables: dict[str, Tensor] = {}
    heads = parts.ctx.heads
    if "bias" in scheme.acts_on:
        axes = range(tokens.axes)
        q, k = (tuple(coords[0, :, axis].view(shape) for axis in axes) for shape in ((1, -1, 1), (1, 1, -1)))
        table = scheme.bias(torch.arange(heads).view(-1, 1, 1), q, k)
        tables["bias"] = table.expand(heads, count, count)
    if "rotate" in scheme.acts_on:
        width = next((mixer.key_width for mixer in parts.mixers if mixer.key_width), parts.ctx.head_dim)
        ones = torch.full((1, heads, count, width), width**-0.5, dtype=torch.float64)
        q_turned, k_turned = scheme.rotate(ones, ones, coords, coords)
        tables["rotation"] = (q_turned @ k_turned.transpose(-1, -2))[0]
    return PositionCodes(name, grid, codes, tables)
