"""`blockyard inspect circuits`: QK and OV circuits of attention heads and between tokens, from circuits.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockyard.errors import UserError
from blockyard.inspect.circuits import (
    HeadCircuits,
    TokenTables,
    copying_spectrum,
    head_circuits,
    ov_circuit,
    qk_circuit,
    select_tokens,
    token_tables,
)
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
from blockyard.inspect.jacobian import Spectrum, spectrum
from blockyard.inspect.labels import token_text
from blockyard.inspect.options import Options
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import load_samples
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "heads", "vocabulary")


_HEADS = 24  # heads of a page
_PAGE_COLUMNS = 6


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
        columns = min(_PAGE_COLUMNS, len(part))
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
    for circuit, colour, marker, label in ((qk, "#0072b2", "o", "QK"), (ov, "#d55e00", "s", "OV")):
        panel.plot(circuit.singular.numpy(), marker=marker, markersize=2.5, linewidth=0.8, color=colour, label=label)
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


COUNTED = 64  # validation samples in which the most frequent tokens are counted
_TITLES = {
    "qk": "QK between tokens: how much a query (row) attends to a key (column)",
    "ov": "OV between tokens: what attending to a token (column) adds to the logit of another (row)",
}
_COLUMNS = ("head", "|QK|", "rank", "positive", "|OV|", "rank", "copying", "token copying")


def inspect(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Return the circuits of every selected head, and those between tokens where the model embeds tokens."""
    embeds_tokens = getattr(getattr(loaded.model, "embedder", None), "table", None) is not None
    if options.vocabulary is not None and not embeds_tokens:
        raise UserError("vocabulary: the model does not embed tokens, so it has no token circuits")
    samples = load_samples(loaded, Options(samples=COUNTED if embeds_tokens and options.vocabulary is None else 1))
    heads = head_circuits(loaded.model, samples[0].batch, layers=options.layers, heads=options.heads)
    tables = token_tables(loaded.model, heads)
    has_tokens = any(table.embedding is not None for table in tables)
    if options.vocabulary is not None and not has_tokens:
        raise UserError("vocabulary: none of these heads has token circuits; leave it out for their QK and OV spectra")
    qk = [spectrum(head.q.T, head.k, one_space=not head.cross) for head in heads]
    ov = [spectrum(head.o, head.v, one_space=not head.cross) for head in heads]
    copying = [copying_spectrum(head, table) for head, table in zip(heads, tables, strict=True)]
    records = [_numbers(*each) for each in zip(heads, tables, qk, ov, copying, strict=True)]
    left_out = list(
        dict.fromkeys(text for each in zip(heads, tables, strict=True) for of in each for text in of.left_out)
    )
    figures = [draw_spectra(heads, qk, ov, folder)]
    numbers: dict[str, object] = {"heads": records, "left_out": left_out}
    if has_tokens:
        token_ids = select_tokens(loaded, samples, options.vocabulary)
        names = [token_text(loaded, token_id) for token_id in token_ids]
        token_numbers, token_figures = _token_circuits(heads, tables, token_ids, names, folder)
        numbers |= {"symbols": token_ids, "names": names, **token_numbers}
        figures += token_figures
    score = "copying: sum of eigenvalues over sum of their absolute values, from -1 to 1"
    return InspectionResult(
        numbers=numbers,
        columns=_COLUMNS,
        rows=[_row(*each) for each in zip(heads, qk, ov, copying, strict=True)],
        figures=chain.from_iterable(figures),
        summary=f"{score}; left out: {'; '.join(left_out) or 'nothing'}",
    )


def _token_circuits(
    heads: list[HeadCircuits], tables: list[TokenTables], token_ids: list[int], names: list[str], folder: Path
) -> tuple[dict[str, object], list[Iterator[Path]]]:
    """Return the QK and OV circuits between tokens of the heads that have them: numbers, and figures."""
    pairs = list(zip(heads, tables, strict=True))
    with_circuit = {
        "qk": [pair for pair in pairs if pair[1].embedding is not None],
        "ov": [pair for pair in pairs if pair[1].unembedding is not None],
    }
    numbers: dict[str, object] = {}
    figures = []
    for which, circuit in (("qk", qk_circuit), ("ov", ov_circuit)):
        selected = with_circuit[which]
        if not selected:
            continue
        scores = [circuit(head, table, token_ids) for head, table in selected]
        numbers[f"{which}_tables"] = to_json(torch.stack(scores))
        numbers[f"{which}_heads"] = [[head.path, head.head] for head, _ in selected]
        head_names = [head.name for head, _ in selected]
        figures.append(draw_token_circuits(scores, head_names, names, which, _TITLES[which], folder))
    return numbers, figures


def _numbers(
    head: HeadCircuits, tables: TokenTables, qk: Spectrum, ov: Spectrum, copying: Spectrum | None
) -> dict[str, object]:
    return {
        "path": head.path,
        "head": head.head,
        "kv_head": head.kv_head,
        "qk": _spectrum_numbers(qk),
        "ov": _spectrum_numbers(ov),
        "token_copying": None if copying is None else copying.positive,
        "left_out": [*head.left_out, *tables.left_out],
    }


def _spectrum_numbers(spectrum: Spectrum) -> dict[str, object]:
    return {
        "norm": spectrum.norm,
        "effective_rank": spectrum.effective_rank,
        "positive": None if math.isnan(spectrum.positive) else spectrum.positive,
        "singular": to_json(spectrum.singular),
        "eigenvalues": [to_json(torch.view_as_real(value)) for value in spectrum.eigenvalues],
    }


def _row(head: HeadCircuits, qk: Spectrum, ov: Spectrum, copying: Spectrum | None) -> tuple[str, ...]:
    return (head.name, *_spectrum_cells(qk), *_spectrum_cells(ov), _positive(copying))


def _spectrum_cells(spectrum: Spectrum) -> tuple[str, str, str]:
    return f"{spectrum.norm:.3g}", f"{spectrum.effective_rank:.1f}", _positive(spectrum)


def _positive(spectrum: Spectrum | None) -> str:
    return "" if spectrum is None or math.isnan(spectrum.positive) else f"{spectrum.positive:+.2f}"
