"""The figure of norms: a histogram of the norms of tokens after each block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from blockyard.inspect.figures._canvas import HIGHLIGHT, INK, canvas, save, split_pages
from blockyard.inspect.token_norms import FACTOR, LayerNorms

_PANELS = 12  # of a page
_BINS = 40


def draw_norms(layers: list[LayerNorms], of: str, folder: Path) -> Iterator[Path]:
    """Draw norms.png, a panel for the stream and for each block; the dashed line is where norms stand out."""
    title = f"Norms of the tokens of {of}; dashed: {FACTOR:g} times the median; marks below: class and register tokens"
    for page, part in enumerate(split_pages(len(layers), _PANELS)):
        shown = [layers[index] for index in part]
        columns = min(4, len(shown))
        with canvas(-(-len(shown) // columns), columns, (2.8, 2.0), title) as (figure, axes):
            panels = [panel for row in axes for panel in row]
            for panel, layer in zip(panels, shown, strict=False):
                panel.hist(layer.tokens.numpy(), bins=_BINS, color=INK, log=True)
                panel.yaxis.set_major_formatter(lambda count, _: f"{count:g}")
                panel.axvline(FACTOR * layer.median, color=HIGHLIGHT, linestyle="--", linewidth=0.9)
                edge = panel.get_xaxis_transform()
                panel.plot(layer.prefix.numpy(), [0.02] * len(layer.prefix), "|", color=HIGHLIGHT, transform=edge)
                panel.set_title(f"{layer.name.replace('.', ' ')}: {layer.outliers:.1%} stand out", pad=3)
            for panel in panels[len(shown) :]:
                panel.set_visible(False)
            yield save(figure, folder, "norms", page)
