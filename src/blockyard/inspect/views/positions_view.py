"""`blockyard inspect positions`: what the position scheme does, position by position."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from blockyard.inspect.figures.positions_figure import draw_positions
from blockyard.inspect.options import Options
from blockyard.inspect.position_codes import PositionCodes, position_codes
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import select_heads
from blockyard.runs.load import Loaded
from blockyard.tokenizer._grid import grid_coordinates


def positions_view(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Returns the codes of a run's positions, and its tables of the selected heads."""
    codes = position_codes(loaded.model)
    heads = select_heads(loaded.model.ctx.heads, options.heads)
    similarity = codes.similarity()
    rows = [] if similarity is None else [("codes", "cosine", *_by_distance(codes, similarity))]
    rows += [
        (name, f"head {head}", *_by_distance(codes, table[head]))
        for name, table in codes.tables.items()
        for head in heads
    ]
    return InspectionResult(
        numbers={
            "scheme": codes.name,
            "grid": codes.grid,
            "codes": None if codes.codes is None else to_json(codes.codes),
            **{name: to_json(table[heads]) for name, table in codes.tables.items()},
        },
        columns=("what", "of", "itself", "next", "half way", "farthest"),
        rows=rows,
        figures=draw_positions(codes, heads, folder),
        summary=f"{codes.name} on {' x '.join(map(str, codes.grid))} positions: means over pairs by their distance",
    )


def _by_distance(codes: PositionCodes, table: Tensor) -> tuple[str, ...]:
    """The mean entry (N, N) over pairs at distance 0, at distance 1, at half the largest and at the largest."""
    coords = grid_coordinates(codes.grid)[1][0]
    distance = (coords[:, None] - coords).abs().sum(-1)  # along the axes
    largest = int(distance.max())
    steps = (0, min(1, largest), largest // 2, largest)
    return tuple(f"{float(table[torch.eq(distance, step)].mean()):.3g}" for step in steps)
