"""The figure of equivariance: |f(P x) - P f(x)| token by token, after each block, with positions and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockyard.inspect.figures._canvas import SEQUENTIAL, add_colorbar, canvas, panel_side, save, split_pages
from blockyard.inspect.permuted import Permuted
from blockyard.inspect.samples import Sample

_BLOCKS = 8  # columns of a page


def draw_equivariance(result: Permuted, sample: Sample, permute: str, folder: Path) -> Iterator[Path]:
    """Draw equivariance.png, rows with and without positions and a column for each block; first x and P x."""
    arms = list(result.stages)
    stages = {arm: [stage for stage in result.stages[arm] if stage.tokens is not None] for arm in arms}
    grid = _grid(result)
    title = f"|f(Px) - Pf(x)| of each token of {sample.name}, P: {_NAMES[permute]}; one scale"
    image = _cells(sample.image, grid) if sample.image is not None and len(grid) == 2 else None
    first = 0 if image is None else 2
    for page, part in enumerate(split_pages(len(stages[arms[0]]), _BLOCKS)):
        columns = first + len(part)
        tables = [stages[arm][index].tokens for arm in arms for index in part]
        end = max(float(torch.cat([table for table in tables if table is not None]).max()), 1e-12)
        side = panel_side(columns, 12)
        with canvas(len(arms), columns, (side, side if len(grid) == 2 else 0.9), title) as (figure, axes):
            drawn = None
            for row, arm in zip(axes, arms, strict=True):
                if image is not None:
                    _draw_image(row[0], image, torch.arange(len(result.order)), grid, "x")
                    _draw_image(row[1], image, result.order, grid, "P x")
                row[0].set_ylabel(f"{arm} positions")
                for panel, index in zip(row[first:], part, strict=True):
                    stage = stages[arm][index]
                    assert stage.tokens is not None
                    table = _laid_out(stage.tokens, grid)
                    drawn = panel.imshow(table.numpy(), cmap=SEQUENTIAL, vmin=0, vmax=end, aspect=_aspect(grid))
                    panel.set_title(f"{stage.name.replace('.', ' ')}: {stage.relative:.2g} of |f(x)|", pad=3)
                for panel in row:
                    panel.set_xticks([])
                    panel.set_yticks([])
            add_colorbar(figure, drawn, [panel for row in axes for panel in row[first:]], "|f(Px) - Pf(x)|")
            yield save(figure, folder, "equivariance", page)


_NAMES = {"patches": "a random order of the tokens", "shift": "all tokens one place on"}


def _grid(result: Permuted) -> tuple[int, ...]:
    """The layout of the tokens: that of an image's patches where they fill one, else a line."""
    grid, count = result.grid, len(result.order)
    return grid if grid is not None and len(grid) == 2 and grid[0] * grid[1] == count else (count,)


def _aspect(grid: tuple[int, ...]) -> str:
    return "equal" if len(grid) == 2 else "auto"


def _laid_out(tokens: Tensor, grid: tuple[int, ...]) -> Tensor:
    return tokens.view(grid) if len(grid) == 2 else tokens[None]


def _cells(image: Tensor, grid: tuple[int, ...]) -> Tensor | None:
    """The patches of an image (N, height, width[, 3]), row by row; None where the grid does not divide it."""
    (rows, columns), (height, width) = grid, image.shape[:2]
    if height % rows or width % columns:
        return None
    cells = image.unflatten(0, (rows, height // rows)).unflatten(2, (columns, width // columns))
    return cells.transpose(1, 2).flatten(0, 1)


def _draw_image(panel: Any, cells: Tensor, order: Tensor, grid: tuple[int, ...], name: str) -> None:
    squares = cells[order].unflatten(0, grid).transpose(1, 2)  # (rows, h, columns, w[, 3])
    panel.imshow(squares.flatten(0, 1).flatten(1, 2).numpy(), cmap="gray", vmin=0, vmax=1)
    panel.set_title(name, pad=3)
