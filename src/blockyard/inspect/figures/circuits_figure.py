"""The figures of circuits: norms and spectra of every head, and circuits between tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from blockyard.inspect.circuits import HeadCircuits
from blockyard.inspect.figures._canvas import (
    DIVERGING,
    INK,
    add_colorbar,
    canvas,
    label_ticks,
    panel_side,
    save,
    split_pages,
)
from blockyard.inspect.spectrum import Spectrum

_HEADS = 24  # heads of a page
_COLUMNS = 6


def draw_spectra(
    heads: Sequence[HeadCircuits], qk: Sequence[Spectrum], ov: Sequence[Spectrum], folder: Path
) -> Iterator[Path]:
    """Draw the singular values of QK and OV, and the eigenvalues of OV in the complex plane, of every head."""
    title = (
        "Circuits of each head (norms folded in): singular values of QK and OV, descending; below, the eigenvalues of "
        "OV in the complex plane: those with a positive real part copy"
    )
    end = max(float(s.singular.max()) for s in (*qk, *ov))
    for page, part in enumerate(split_pages(len(heads), _HEADS)):
        columns = min(_COLUMNS, len(part))
        rows = -(-len(part) // columns)
        with canvas(2 * rows, columns, (2.3, 1.75), title) as (figure, axes):
            for panel in (panel for row_axes in axes for panel in row_axes):
                panel.set_axis_off()
            for index, i in enumerate(part):
                row, column = divmod(index, columns)
                _draw_singular(axes[2 * row][column], heads[i].name, qk[i], ov[i], end, legend=index == 0)
                _draw_eigenvalues(axes[2 * row + 1][column], ov[i])
            yield save(figure, folder, "circuits", page)


def _draw_singular(panel: Any, name: str, qk: Spectrum, ov: Spectrum, end: float, *, legend: bool) -> None:
    panel.set_axis_on()
    for spectrum, colour, marker, label in ((qk, "#0072b2", "o", "QK"), (ov, "#d55e00", "s", "OV")):
        panel.plot(spectrum.singular.numpy(), marker=marker, markersize=2.5, linewidth=0.8, color=colour, label=label)
    panel.set_ylim(0, end * 1.05)
    panel.set_title(name, pad=2)
    panel.tick_params(labelsize=6)
    panel.xaxis.get_major_locator().set_params(integer=True)
    if legend:
        panel.set_ylabel("singular value", fontsize=7)
        panel.legend(fontsize=7, frameon=False)


def _draw_eigenvalues(panel: Any, ov: Spectrum) -> None:
    values = ov.eigenvalues
    if not len(values):
        text = "from another sequence:\nno eigenvalues"
        panel.text(0.5, 0.5, text, ha="center", va="center", fontsize=7, color=INK)
        return
    panel.set_axis_on()
    limit = max(float(values.abs().max()) * 1.15, 1e-9)
    panel.axhline(0, color="#b0b0b0", linewidth=0.5)
    panel.axvline(0, color="#b0b0b0", linewidth=0.5)
    panel.scatter(values.real.numpy(), values.imag.numpy(), s=9, color="#d55e00", linewidths=0)
    panel.set_xlim(-limit, limit)
    panel.set_ylim(-limit, limit)
    panel.set_title(f"OV eigenvalues, copying {ov.positive:+.2f}", pad=2, color=INK)
    panel.tick_params(labelsize=6)


def draw_token_circuits(
    tables: Sequence[Tensor], head_names: Sequence[str], tokens: Sequence[str], which: str, title: str, folder: Path
) -> Iterator[Path]:
    """Draw one panel for each head: a table (S, S) with tokens as rows and columns; zero is white."""
    most = 4 if len(tokens) > 16 else 12
    for page, part in enumerate(split_pages(len(tables), most)):
        columns = min(2 if most == 4 else 4, len(part))
        rows = -(-len(part) // columns)
        side = panel_side(columns, len(tokens))
        with canvas(rows, columns, (side + 0.5, side), title) as (figure, axes):
            panels = [panel for row in axes for panel in row]
            for panel in panels[len(part) :]:
                panel.set_axis_off()
            for panel, i in zip(panels, part, strict=False):
                limit = max(float(tables[i].abs().max()), 1e-12)
                image = panel.imshow(tables[i].numpy(), cmap=DIVERGING, vmin=-limit, vmax=limit)
                panel.set_title(head_names[i], pad=3)
                label_ticks(panel, tokens, side, "x")
                label_ticks(panel, tokens, side, "y")
                add_colorbar(figure, image, panel, fraction=0.046, pad=0.02)
            yield save(figure, folder, f"circuits_{which}", page)
