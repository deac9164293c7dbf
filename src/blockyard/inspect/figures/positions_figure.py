"""The figures of positions: codes, how alike they are, and scores by query and key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from blockyard.inspect.figures._canvas import DIVERGING, add_colorbar, canvas, save
from blockyard.inspect.position_codes import PositionCodes

_MAPS = 8  # positions of a grid whose similarity to all others is drawn


def draw_positions(codes: PositionCodes, heads: list[int], folder: Path) -> Iterator[Path]:
    """Draw positions.png, codes by position beside the similarity of positions, and positions_NAME.png by head."""
    similarity = codes.similarity()
    if codes.codes is not None and similarity is not None:
        title = f"{codes.name}: codes by position, and the cosine of each pair (without the mean code)"
        with canvas(1, 2, (5.0, 4.2), title) as (figure, axes):
            limit = float(codes.codes.abs().max()) or 1.0
            left = axes[0][0].imshow(codes.codes.numpy(), cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto")
            axes[0][0].set(xlabel="channel", ylabel="position")
            add_colorbar(figure, left, axes[0][0])
            right = axes[0][1].imshow(similarity.numpy(), cmap=DIVERGING, vmin=-1, vmax=1)
            axes[0][1].set(xlabel="position", ylabel="position")
            add_colorbar(figure, right, axes[0][1])
            yield save(figure, folder, "positions")
        if len(codes.grid) == 2:
            yield from _maps(codes, similarity, folder)
    for name, table in codes.tables.items():
        title = f"{codes.name}: {name} by query (row) and key (column), head by head"
        columns = min(4, len(heads))
        with canvas(-(-len(heads) // columns), columns, (2.6, 2.4), title) as (figure, axes):
            limit = float(table.abs().max()) or 1.0
            panels = [panel for row in axes for panel in row]
            for panel, head in zip(panels, heads, strict=False):
                image = panel.imshow(table[head].numpy(), cmap=DIVERGING, vmin=-limit, vmax=limit)
                panel.set_title(f"head {head}", pad=3)
            for panel in panels[len(heads) :]:
                panel.set_visible(False)
            add_colorbar(figure, image, panels)
            yield save(figure, folder, f"positions_{name}")


def _maps(codes: PositionCodes, similarity: Tensor, folder: Path) -> Iterator[Path]:
    """Draw positions_maps.png: how alike all positions of the grid are to a few of them."""
    rows, columns = codes.grid
    chosen = [(rows - 1) * r // 2 * columns + (columns - 1) * c // 3 for r in (0, 2) for c in range(4)][:_MAPS]
    with canvas(2, 4, (2.2, 2.2), f"{codes.name}: cosine of the code of one position to all of the grid") as (
        figure,
        axes,
    ):
        for panel, position in zip([panel for row in axes for panel in row], chosen, strict=True):
            image = panel.imshow(similarity[position].view(rows, columns).numpy(), cmap=DIVERGING, vmin=-1, vmax=1)
            panel.set_title(f"{position // columns},{position % columns}", pad=3)
        add_colorbar(figure, image, axes[0] + axes[1])
        yield save(figure, folder, "positions_maps")
