"""Pictures of attention: whole maps, one query's weights over the picture or the tokens, entropies."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from blockyard.inspect.attention_weights import LayerAttention, one_query
from blockyard.inspect.figures._canvas import (
    DIVERGING,
    INK,
    MARK,
    NOTHING,
    SEQUENTIAL,
    canvas,
    drawable,
    name_ticks,
    pages,
    panel_side,
    save,
    scale,
)
from blockyard.inspect.samples import Sample
from blockyard.ops.maps import smaller

_ROWS, _COLUMNS = 6, 8  # panels of a page
_SIDE = 512  # most rows and columns of a map that is drawn
_TOKENS = 96  # most tokens of a strip
_STRIPS = 36  # most rows of a page of strips
_MANY = 1000  # entries, from which on most weights are small


def draw(found: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path) -> Iterator[Path]:
    """Every picture of these layers. Raises ValueError for a query that the row does not have."""
    yield from _maps(found, sample, folder)
    over = [layer for layer in found if _on_picture(layer, sample)]
    if over:
        yield from _over_picture(over, sample, query, folder)
    rest = [layer for layer in found if layer not in over]
    groups: dict[Any, list[LayerAttention]] = {}  # a strip's columns, and whom its rows are of, are the same
    for layer in rest:
        groups.setdefault((*layer.keys, None, *layer.queries), []).append(layer)
    number = count()
    for layers in groups.values():
        yield from _strips(layers, sample, query, folder, number)
    yield _entropy(found, folder)


def _pages(found: list[LayerAttention]) -> Iterator[tuple[int, list[LayerAttention], range]]:
    """Layers and heads (as places in `LayerAttention.heads`) of each page."""
    number = 0
    for layers in pages(len(found), _ROWS):
        part = [found[layer] for layer in layers]
        for heads in pages(max(len(layer.heads) for layer in part), _COLUMNS):
            yield number, part, heads
            number += 1


def _maps(found: list[LayerAttention], sample: Sample, folder: Path) -> Iterator[Path]:
    for number, layers, heads in _pages(found):
        shown = max(max(len(layer.queries), len(layer.keys)) for layer in layers)
        side = panel_side(len(heads), shown)
        top = _top([layer.weights for layer in layers])
        title = f"Attention weights on {sample.name}; rows are queries, columns keys; grey is exactly nothing"
        with canvas(len(layers), len(heads), (side, side), title) as (figure, axes):
            image = None
            for row, layer, below in zip(axes, layers, [*layers[1:], None], strict=True):
                named = below is None or below.keys != layer.keys or len(below.heads) < len(layer.heads)
                for place, panel in zip(heads, row, strict=True):
                    if place >= len(layer.heads):
                        panel.set_axis_off()
                        continue
                    image = _map(panel, layer, place, top, side, first=panel is row[0], named=named)
            _scale(figure, image, axes, "attention weight")
            yield save(figure, folder / f"attention_maps{_suffix(number)}.png")


def _map(panel: Any, layer: LayerAttention, place: int, top: float, side: float, *, first: bool, named: bool) -> Any:
    weights = smaller(layer.weights[place], _SIDE)
    signed = float(weights.min()) < -1e-6  # weights that are no shares
    table = weights.numpy() if signed else np.ma.masked_equal(weights.numpy(), 0.0)
    colours, low = (DIVERGING, -top) if signed else (_colours(), 0.0)
    image = panel.imshow(table, cmap=colours, norm=_norm(low, top, table.size), interpolation="nearest")
    panel.set_title(f"{layer.name}, head {layer.heads[place]}", pad=2)
    panel.set_xticks([])
    panel.set_yticks([])
    if max(layer.weights.shape[1:]) <= _SIDE:
        if named:
            name_ticks(panel, layer.keys, side, "x")
        if first:
            name_ticks(panel, layer.queries, side, "y")
    return image


def _over_picture(found: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path) -> Iterator[Path]:
    assert sample.picture is not None
    picture = sample.picture.numpy()
    _, name = one_query(found[0], query)
    for number, layers, heads in _pages(found):
        tables = [one_query(layer, query)[0] for layer in layers]
        top = _top([table[:, layer.prefix :] for table, layer in zip(tables, layers, strict=True)])
        side = panel_side(len(heads) + 1, 16)
        title = f"Where {name} looks, on {sample.name}"
        with canvas(len(layers), len(heads) + 1, (side, side + 0.15), title) as (figure, axes):
            image = None
            for row, layer, table in zip(axes, layers, tables, strict=True):
                _bare(row[0], picture, layer, name)
                for place, panel in zip(heads, row[1:], strict=True):
                    if place >= len(layer.heads):
                        panel.set_axis_off()
                        continue
                    image = _overlay(panel, picture, layer, table[place], place, top)
            _scale(figure, image, axes, "attention weight of a patch")
            yield save(figure, folder / f"attention_picture{_suffix(number)}.png")


def _bare(panel: Any, picture: Any, layer: LayerAttention, name: str) -> None:
    """The picture, with the query's patch framed."""
    from matplotlib.patches import Rectangle

    panel.imshow(picture, cmap="gray", vmin=0, vmax=1)
    panel.set_title(layer.name, pad=2)
    panel.set_xticks([])
    panel.set_yticks([])
    if not name.startswith("token") or layer.grid is None:
        return
    height, width = (side / count for side, count in zip(picture.shape, layer.grid, strict=False))
    row, column = divmod(int(name.split()[1]), layer.grid[1])
    panel.add_patch(
        Rectangle((column * width - 0.5, row * height - 0.5), width, height, fill=False, edgecolor=MARK, linewidth=2)
    )


def _overlay(panel: Any, picture: Any, layer: LayerAttention, weights: Any, place: int, top: float) -> Any:
    assert layer.grid is not None
    height, width = picture.shape[:2]
    panel.imshow(0.25 + 0.6 * picture, cmap="gray", vmin=0, vmax=1)  # neither black nor white, so that both take colour
    on_grid = weights[layer.prefix :].reshape(layer.grid).numpy()
    image = panel.imshow(
        on_grid,
        cmap=_veil(),
        vmin=0,
        vmax=top,
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        interpolation="nearest",
    )
    beside = float(weights[: layer.prefix].sum())
    panel.set_title(f"head {layer.heads[place]}" + (f", {beside:.0%} on prefix" if layer.prefix else ""), pad=2)
    panel.set_xticks([])
    panel.set_yticks([])
    return image


def _strips(
    found: list[LayerAttention], sample: Sample, query: str | int | None, folder: Path, pictures: Iterator[int]
) -> Iterator[Path]:
    rows = [(layer, place) for layer in found for place in range(len(layer.heads))]
    _, name = one_query(found[0], query)
    for part in pages(len(rows), _STRIPS):
        tables = torch.stack([one_query(layer, query)[0][place] for layer, place in (rows[i] for i in part)])
        keys = found[0].keys
        start = _window(tables.sum(0).abs(), _TOKENS)
        here = range(start, min(start + _TOKENS, len(keys)))
        width = len(here) * 0.15 + 1.6
        title = f"Where {name} looks, on {sample.name}"
        if len(here) < len(keys):
            outside = 1 - float(tables[:, start : here.stop].sum() / tables.sum())
            title += f"; tokens {start} to {here.stop - 1} of {len(keys)}, {outside:.0%} of the weight lies outside"
        with canvas(1, 1, (width, 0.2 * len(part) + 0.7), title) as (figure, axes):
            panel = axes[0][0]
            table = np.ma.masked_equal(tables[:, start : here.stop].numpy(), 0.0)
            image = panel.imshow(table, cmap=_colours(), vmin=0, vmax=_top([tables]), aspect="auto")
            words = [f"{rows[i][0].name} head {rows[i][0].heads[rows[i][1]]}" for i in part]
            panel.set_yticks(range(len(part)), words, fontsize=7)
            names = [drawable(keys[i]) for i in here]
            turned = 90 if max(map(len, names), default=0) > 2 else 0
            panel.set_xticks(range(len(here)), names, fontsize=7, rotation=turned)
            panel.tick_params(length=0, pad=2)
            _scale(figure, image, axes, "attention weight")
            yield save(figure, folder / f"attention_tokens{_suffix(next(pictures))}.png")


def _window(mass: torch.Tensor, width: int) -> int:
    """Where the neighbours begin, `width` of them, that have the largest sum."""
    if len(mass) <= width:
        return 0
    return int(mass.unfold(0, width, 1).sum(1).argmax())


def _entropy(found: list[LayerAttention], folder: Path) -> Path:
    columns = max(max(layer.heads) for layer in found) + 1
    table = np.full((len(found), columns), math.nan)
    for row, layer in enumerate(found):
        table[row, layer.heads] = layer.share.numpy()
    title = "Entropy of attention: in nats, and as a share of the logarithm of what may be seen"
    with canvas(1, 1, (max(3.5, 0.75 * columns + 1.2), 0.32 * len(found) + 0.5), title) as (figure, axes):
        panel = axes[0][0]
        image = panel.imshow(np.ma.masked_invalid(table), cmap=_colours(), vmin=0, vmax=1, aspect="auto")
        for row, layer in enumerate(found):
            for head, nats, share in zip(layer.heads, layer.entropy.tolist(), layer.share.tolist(), strict=True):
                words = "none" if math.isnan(nats) else f"{nats:.2f}" + ("" if math.isnan(share) else f"  {share:.0%}")
                panel.text(head, row, words, ha="center", va="center", fontsize=7, color=_readable(share))
        panel.set_yticks(range(len(found)), [layer.name for layer in found])
        panel.set_xticks(range(columns), [f"head {head}" for head in range(columns)])
        panel.tick_params(length=0)
        _scale(figure, image, axes, "share of the most")
        return save(figure, folder / "attention_entropy.png")


def _readable(share: float) -> str:
    """Dark text on bright colours, white on dark ones."""
    return "white" if share < 0.55 else INK


def _on_picture(layer: LayerAttention, sample: Sample) -> bool:
    """Whether the keys are the patches of the sample's picture."""
    if sample.picture is None or layer.cross or layer.grid is None or len(layer.grid) != 2:
        return False
    return layer.grid[0] * layer.grid[1] == len(layer.keys) - layer.prefix


def _norm(low: float, top: float, entries: int) -> Any:
    """Even steps of colour; finer ones for small weights where there are many."""
    from matplotlib.colors import Normalize, PowerNorm

    return PowerNorm(0.5, 0.0, top) if low == 0.0 and entries > _MANY else Normalize(low, top)


def _top(tables: list[Any]) -> float:
    """The end of a colour scale that a few extreme entries do not stretch."""
    every = torch.cat([table.flatten() for table in tables]).abs()
    return max(float(every.max()) if every.numel() < 2000 else float(np.quantile(every.numpy(), 0.998)), 1e-6)


def _colours() -> Any:
    import matplotlib

    return matplotlib.colormaps[SEQUENTIAL].with_extremes(bad=NOTHING)


def _veil() -> Any:
    """From nothing to orange: what is not looked at stays grey."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("veil", [(1.0, 0.45, 0.0, 0.0), (1.0, 0.45, 0.0, 0.9)])


def _scale(figure: Any, image: Any, axes: Any, words: str) -> None:
    if image is not None:
        scale(figure, image, [panel for row in axes for panel in row], words, fraction=0.03, pad=0.01, aspect=30)


def _suffix(number: int) -> str:
    return f"_{number + 1}" if number else ""
