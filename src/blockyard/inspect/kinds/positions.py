"""`blockyard inspect positions`: the codes that a position scheme adds, and the scores that it changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Position
from blockyard.errors import UserError
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Page, Panel, grid, signed
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import select_heads
from blockyard.model._block_stack import BlockStack
from blockyard.runs.load import Loaded
from blockyard.tokenizer._grid import grid_coordinates

OPTIONS = ("layers", "heads")

MOST = 256  # positions that are shown, the first ones


@dataclass(frozen=True)
class PositionCodes:
    """The codes and tables of one scheme.

    grid: the layout of the shown positions
    codes: (N, channels), added to tokens or appended to them; None if the scheme does neither
    tables: (H, N, N) by name: `bias` is added to the score of query i and key j; `rotation` is the product of equal
        queries and keys after their rotation, 1 at equal positions
    """

    name: str
    grid: tuple[int, ...]
    codes: Tensor | None
    tables: dict[str, Tensor]

    def similarity(self) -> Tensor | None:
        """Return the cosine of the codes of each pair of positions (N, N), without their mean; None without codes."""
        if self.codes is None:
            return None
        centred = self.codes - self.codes.mean(0)
        unit = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return (unit @ unit.T).clamp(-1, 1)


def scheme_of(model: nn.Module, layers: tuple[int, ...] | None) -> Position:
    """Return the position scheme of the selected layers; by default of the model, or of the first kind that has one.

    Raises UserError if there is none to show, or the layers have several.
    """
    if not isinstance(model, BlockStack):
        scheme = getattr(model, "position", None)
        schemes = [scheme] if isinstance(scheme, Position) else []
    elif layers is None:
        schemes = [scheme for scheme, _ in model.placed_mixers() if scheme.acts_on][:1]
    else:
        beyond = [layer for layer in layers if layer >= len(model.blocks)]
        if beyond:
            raise UserError(f"positions: layers={beyond[0]}: the model has layers 0 to {len(model.blocks) - 1}")
        schemes = list(dict.fromkeys(model.position_of(layer) for layer in layers))
    if len(schemes) > 1:
        names = " and ".join(type(scheme).__name__ for scheme in schemes)
        raise UserError(f"positions: these layers have {names}; name layers of one kind")
    if not schemes or not schemes[0].acts_on:
        raise UserError("positions: this model has no position scheme (position=none)")
    return schemes[0]


@torch.no_grad()
def position_codes(model: nn.Module, layers: tuple[int, ...] | None = None) -> PositionCodes:
    """Return the codes and tables of the position scheme of a model, or of its layers. Raises UserError."""
    parts: Any = model
    scheme = scheme_of(model, layers)
    tokens, name = parts.ctx.tokens, type(scheme).__name__
    if not tokens.grid or not scheme.acts_on & {"embed", "rotate", "bias"}:
        raise UserError(f"positions: {name} reads facts that differ from sample to sample, not positions")
    mixers = parts.mixers
    if isinstance(model, BlockStack):
        mixers = next((readers for placed, readers in model.placed_mixers() if placed is scheme), mixers)
    scheme = copy.deepcopy(scheme).double()  # the model stays as it was trained, for kinds that follow
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
        q = tuple(coord.view(1, -1, 1) for coord in coords[0].unbind(-1))
        k = tuple(coord.view(1, 1, -1) for coord in coords[0].unbind(-1))
        table = scheme.bias(torch.arange(heads).view(-1, 1, 1), q, k)
        tables["bias"] = table.expand(heads, count, count)
    if "rotate" in scheme.acts_on:
        width = next((mixer.key_width for mixer in mixers if mixer.key_width), parts.ctx.head_dim)
        # Equal queries and keys of length one, so that their product is 1 before the rotation.
        ones = torch.full((1, heads, count, width), width**-0.5, dtype=torch.float64)
        q_turned, k_turned = scheme.rotate(ones, ones, coords, coords)
        tables["rotation"] = (q_turned @ k_turned.transpose(-1, -2))[0]
    return PositionCodes(name, grid, codes, tables)


def pages(codes: PositionCodes, heads: list[int]) -> Iterator[Page]:
    """Yield positions.png, codes by position beside the similarity of positions, and positions_NAME.png by head."""
    similarity = codes.similarity()
    if codes.codes is not None and similarity is not None:
        title = f"{codes.name}: codes by position, and the cosine of each pair (without the mean code)"
        heat = signed(codes.codes, stretched=True)
        by_channel = Panel([heat], xlabel="channel", ylabel="position", numbers=True, whole="both", bar=True)
        cosine = signed(similarity, 1.0)
        by_position = Panel([cosine], xlabel="position", ylabel="position", numbers=True, whole="both", bar=True)
        yield Page("positions", title, [[by_channel, by_position]], (5.0, 4.2))
        if len(codes.grid) == 2:
            yield _map_page(codes, similarity)
    for name, table in codes.tables.items():
        title = f"{codes.name}: {name} by query (row) and key (column), head by head"
        limit = float(table.abs().max()) or 1.0
        panels = [Panel([signed(table[head], limit)], f"head {head}", numbers=True, whole="both") for head in heads]
        yield Page(f"positions_{name}", title, grid(panels, 4), (2.6, 2.4), bar="")


def _map_page(codes: PositionCodes, similarity: Tensor) -> Page:
    """Return positions_maps.png: the cosine of all positions of the grid with eight of them."""
    rows, columns = codes.grid
    panels = []
    for row in (0, rows - 1):
        for quarter in range(4):
            column = (columns - 1) * quarter // 3
            cosine = similarity[row * columns + column].view(rows, columns)
            panels.append(Panel([signed(cosine, 1.0)], f"{row},{column}", numbers=True, whole="both"))
    title = f"{codes.name}: cosine of the code of one position to all of the grid"
    return Page("positions_maps", title, grid(panels, 4), (2.2, 2.2), bar="")


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the codes of a run's positions, and its tables of the selected heads."""
    codes = position_codes(loaded.model, options.layers)
    heads = select_heads(loaded.model.ctx.heads, options.heads)
    rows = []
    similarity = codes.similarity()
    if similarity is not None:
        rows.append({"what": "codes", "of": "cosine", **_by_distance(codes, similarity)})
    for name, table in codes.tables.items():
        rows += [{"what": name, "of": f"head {head}", **_by_distance(codes, table[head])} for head in heads]
    size = " x ".join(map(str, codes.grid))
    others = _others(loaded.model, options.layers)
    return InspectionResult(
        numbers={
            "scheme": codes.name,
            "grid": codes.grid,
            "codes": None if codes.codes is None else to_json(codes.codes),
            **{name: to_json(table[heads]) for name, table in codes.tables.items()},
        },
        rows=rows,
        pages=pages(codes, heads),
        summary=f"{codes.name} on {size} positions: means over pairs by their distance{others}",
    )


def _others(model: nn.Module, layers: tuple[int, ...] | None) -> str:
    """Return the layers that have another scheme than the one shown, as text; empty if layers were selected."""
    if layers is not None or not isinstance(model, BlockStack):
        return ""
    shown = scheme_of(model, None)
    by_scheme: dict[Position, list[int]] = {}
    for layer in range(len(model.blocks)):
        by_scheme.setdefault(model.position_of(layer), []).append(layer)
    texts = []
    for scheme, scheme_layers in by_scheme.items():
        if scheme is not shown and scheme.acts_on:
            names = ",".join(map(str, scheme_layers))
            texts.append(f"{type(scheme).__name__} in layers {names} (layers={scheme_layers[0]})")
    return f"; {' and '.join(texts)}" if texts else ""


def _by_distance(codes: PositionCodes, table: Tensor) -> dict[str, str]:
    """Return the mean entry of a table (N, N) over pairs of positions, by their distance along the axes."""
    coords = grid_coordinates(codes.grid)[1][0]
    distance = (coords[:, None] - coords).abs().sum(-1)
    largest = int(distance.max())
    steps = {"itself": 0, "next": min(1, largest), "half way": largest // 2, "farthest": largest}
    return {name: f"{float(table[torch.eq(distance, step)].mean()):.3g}" for name, step in steps.items()}
