"""The figure of memory: for each key the training tokens with the largest coefficients, in their context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from blockyard.inspect.figures._canvas import (
    DIVERGING,
    HIGHLIGHT,
    INK,
    add_colorbar,
    canvas,
    printable,
    save,
    split_pages,
)
from blockyard.inspect.key_examples import Example, ShownKey

BEFORE = 20  # tokens of a context before the example; as many follow where the model reads them
_KEYS = 8  # of a page
_COLUMNS = 10  # images of a row


def window(example: Example, before: int, *, causal: bool) -> range:
    """Returns the tokens that are shown around an example."""
    stop = example.token + 1 if causal else example.token + 1 + before
    return range(max(0, example.token - before), min(stop, len(example.labels)))


def draw_keys(shown: list[ShownKey], folder: Path, *, causal: bool) -> Iterator[Path]:
    """Draw memory.png: a row of images for each key, or a strip of tokens for each example."""
    images = [each for each in shown if all(example.image is not None for example in each.examples)]
    others = [each for each in shown if each not in images]
    page = 0
    for keys, draw in ((images, _draw_images), (others, _draw_strips)):
        for part in split_pages(len(keys), _KEYS) if keys else ():
            yield draw([keys[index] for index in part], folder, page, causal)
            page += 1


def _draw_images(keys: list[ShownKey], folder: Path, page: int, _: bool) -> Path:
    from matplotlib.patches import Rectangle

    columns = min(_COLUMNS, max(len(each.examples) for each in keys))
    title = "Training patches with the largest coefficient of each key, the strongest first"
    with canvas(len(keys), columns, (1.5, 1.5), title) as (figure, axes):
        for row, each in zip(axes, keys, strict=True):
            for panel in row:
                panel.set_xticks([])
                panel.set_yticks([])
            for panel in row[len(each.examples) :]:
                panel.set_axis_off()
            row[0].set_ylabel(f"{each.layer.name}\nkey {each.key}")
            for panel, example in zip(row, each.examples, strict=False):
                assert example.image is not None
                assert example.grid is not None
                panel.imshow(example.image.numpy(), cmap="gray", vmin=0, vmax=1)
                height, width = (side / n for side, n in zip(example.image.shape, example.grid, strict=False))
                cell = divmod(example.token, example.grid[1])
                corner = (cell[1] * width - 0.5, cell[0] * height - 0.5)
                panel.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=HIGHLIGHT, linewidth=1.5))
                panel.set_title(f"{float(example.coefficients[example.token]):.3g}", pad=2)
        return save(figure, folder, "memory", page)


def _draw_strips(keys: list[ShownKey], folder: Path, page: int, causal: bool) -> Path:
    examples = [example for each in keys for example in each.examples]
    parts = {id(example): window(example, BEFORE, causal=causal) for example in examples}
    before = max(example.token - parts[id(example)].start for example in examples)
    width = before + max(parts[id(example)].stop - example.token for example in examples)
    most = max(len(each.examples) for each in keys)
    shown = [each.labels[index] for each in examples for index in parts[id(each)]]
    cell = 0.12 + 0.07 * min(12, max(map(len, shown)))
    title = "Training tokens with the largest coefficient of each key (framed), and the key's coefficient around them"
    with canvas(len(keys), 1, (cell * width + 1.6, 0.22 * most + 0.35), title) as (figure, axes):
        values = [each.coefficients[parts[id(each)].start : parts[id(each)].stop] for each in examples]
        limit = float(torch.cat(values).abs().max()) or 1.0
        image = None
        for (panel,), each in zip(axes, keys, strict=True):
            image = _draw_strip(panel, each, parts, before, (most, width), limit)
        add_colorbar(figure, image, [panel for row in axes for panel in row], "coefficient")
        return save(figure, folder, "memory", page)


def _draw_strip(
    panel: Any, shown: ShownKey, parts: dict[int, range], before: int, size: tuple[int, int], limit: float
) -> Any:
    from matplotlib.patches import Rectangle

    table = torch.full(size, torch.nan)
    for row, example in enumerate(shown.examples):
        part = parts[id(example)]
        start = before - (example.token - part.start)
        table[row, start : start + len(part)] = example.coefficients[part.start : part.stop]
        for column, index in enumerate(part, start):
            value = abs(float(example.coefficients[index])) / limit
            colour = "white" if value > 0.6 else INK
            label = printable(example.labels[index])
            panel.text(column, row, label, ha="center", va="center", fontsize=6, color=colour)
        panel.add_patch(Rectangle((before - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=HIGHLIGHT, linewidth=1.2))
    image = panel.imshow(table.numpy(), cmap=DIVERGING, vmin=-limit, vmax=limit, aspect="auto")
    panel.set_title(f"{shown.layer.name}, key {shown.key}", pad=2, loc="left")
    panel.set_yticks(range(len(shown.examples)), [f"sample {each.sample}" for each in shown.examples], fontsize=6)
    panel.set_xticks([])
    return image
