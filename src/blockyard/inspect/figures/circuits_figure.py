"""Pictures of circuits: norms and spectra of every head, and the circuits between symbols."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from blockyard.inspect.circuits import HeadCircuits
from blockyard.inspect.figures._canvas import DIVERGING, INK, canvas, name_ticks, pages, panel_side, save, scale
from blockyard.inspect.spectrum import Spectrum

_HEADS = 24  # heads of a page
_COLUMNS = 6


def draw_spectra(
    heads: Sequence[HeadCircuits], qk: Sequence[Spectrum], ov: Sequence[Spectrum], folder: Path
) -> Iterator[Path]:
    """Singular values of QK and OV, and the eigenvalues of OV in the complex plane, of every head."""
    title = (
        "Circuits of each head (norms folded in): singular values of QK and OV, falling; below, the eigenvalues of "
        "OV in the complex plane: right of zero is copying"
    )
    top = max(float(s.singular.max()) for s in (*qk, *ov))
    for number, part in enumerate(pages(len(heads), _HEADS)):
        columns = min(_COLUMNS, len(part))
        rows = -(-len(part) // columns)
        with canvas(2 * rows, columns, (2.3, 1.75), title) as (figure, axes):
            for row in axes:
                for panel in row:
                    panel.set_axis_off()
            for place, i in enumerate(part):
                row, column = divmod(place, columns)
                _singular(axes[2 * row][column], heads[i].name, qk[i], ov[i], top, first=place == 0)
                _plane(axes[2 * row + 1][column], ov[i])
            yield save(figure, folder / f"circuits{_suffix(number)}.png")


def _singular(panel: Any, name: str, qk: Spectrum, ov: Spectrum, top: float, *, first: bool) -> None:
    panel.set_axis_on()
    for spectrum, colour, mark, word in ((qk, "#0072b2", "o", "QK"), (ov, "#d55e00", "s", "OV")):
        panel.plot(spectrum.singular.numpy(), marker=mark, markersize=2.5, linewidth=0.8, color=colour, label=word)
    panel.set_ylim(0, top * 1.05)
    panel.set_title(name, pad=2)
    panel.tick_params(labelsize=6)
    panel.xaxis.get_major_locator().set_params(integer=True)
    if first:
        panel.set_ylabel("singular value", fontsize=7)
        panel.legend(fontsize=7, frameon=False)


def _plane(panel: Any, ov: Spectrum) -> None:
    values = ov.eigenvalues
    if not len(values):
        panel.text(0.5, 0.5, "from another row:\nno eigenvalues", ha="center", va="center", fontsize=7, color=INK)
        return
    panel.set_axis_on()
    reach = max(float(values.abs().max()) * 1.15, 1e-9)
    panel.axhline(0, color="#b0b0b0", linewidth=0.5)
    panel.axvline(0, color="#b0b0b0", linewidth=0.5)
    panel.scatter(values.real.numpy(), values.imag.numpy(), s=9, color="#d55e00", linewidths=0)
    panel.set_xlim(-reach, reach)
    panel.set_ylim(-reach, reach)
    panel.set_title(f"OV eigenvalues, copying {ov.positive:+.2f}", pad=2, color=INK)
    panel.tick_params(labelsize=6)


def draw_tokens(
    tables: Sequence[Tensor], names: Sequence[str], symbols: Sequence[str], which: str, title: str, folder: Path
) -> Iterator[Path]:
    """One panel for each head: tables (S, S), rows and columns named by symbols; zero is white."""
    most = 4 if len(symbols) > 16 else 12
    for number, part in enumerate(pages(len(tables), most)):
        columns = min(2 if most == 4 else 4, len(part))
        rows = -(-len(part) // columns)
        side = panel_side(columns, len(symbols))
        with canvas(rows, columns, (side + 0.5, side), title) as (figure, axes):
            panels = [panel for row in axes for panel in row]
            for panel in panels[len(part) :]:
                panel.set_axis_off()
            for panel, i in zip(panels, part, strict=False):
                reach = max(float(tables[i].abs().max()), 1e-12)
                image = panel.imshow(tables[i].numpy(), cmap=DIVERGING, vmin=-reach, vmax=reach)
                panel.set_title(names[i], pad=3)
                name_ticks(panel, symbols, side, "x")
                name_ticks(panel, symbols, side, "y")
                scale(figure, image, panel, fraction=0.046, pad=0.02)
            yield save(figure, folder / f"circuits_{which}{_suffix(number)}.png")


def _suffix(number: int) -> str:
    return f"_{number + 1}" if number else ""
