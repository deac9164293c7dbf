"""`blockyard inspect circuits`: QK and OV circuits of attention heads and between tokens, from circuits.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockyard.errors import UserError
from blockyard.inspect._canvas import panel_side, split_pages
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
from blockyard.inspect.jacobian import Spectrum, spectrum
from blockyard.inspect.labels import token_text
from blockyard.inspect.options import Options
from blockyard.inspect.panels import Page, Panel, grid, mark, signed, text
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import load_samples
from blockyard.runs.load import Loaded

OPTIONS = ("layers", "heads", "vocabulary")

COUNTED = 64  # validation samples in which the most frequent tokens are counted
_HEADS = 24  # of a page
_PAGE_COLUMNS = 6
_QK_COLOUR = "#0072b2"
_OV_COLOUR = "#d55e00"
_TITLES = {
    "qk": "QK between tokens: how much a query (row) attends to a key (column)",
    "ov": "OV between tokens: what attending to a token (column) adds to the logit of another (row)",
}


def inspect(loaded: Loaded, options: Options) -> InspectionResult:
    """Return the circuits of every selected head, and the circuits between tokens if the model embeds tokens."""
    embeds_tokens = getattr(getattr(loaded.model, "embedder", None), "table", None) is not None
    if options.vocabulary is not None and not embeds_tokens:
        raise UserError("vocabulary: the model does not embed tokens, so it has no token circuits")
    num_samples = 1  # to find the norms before each mixer
    if embeds_tokens and options.vocabulary is None:
        num_samples = COUNTED
    samples = load_samples(loaded, Options(samples=num_samples))
    heads = head_circuits(loaded.model, samples[0].batch, layers=options.layers, heads=options.heads)
    tables = token_tables(loaded.model, heads)
    has_tokens = any(table.embedding is not None for table in tables)
    if options.vocabulary is not None and not has_tokens:
        raise UserError("vocabulary: none of these heads has token circuits; leave it out for their QK and OV spectra")
    spectra = []
    left_out: dict[str, None] = {}  # in order, each once
    for head, table in zip(heads, tables, strict=True):
        qk = spectrum(head.q.T, head.k, one_space=not head.cross)
        ov = spectrum(head.o, head.v, one_space=not head.cross)
        spectra.append(HeadSpectra(qk, ov, copying_spectrum(head, table)))
        left_out |= dict.fromkeys([*head.left_out, *table.left_out])
    numbers: dict[str, object] = {
        "heads": [_numbers(*parts) for parts in zip(heads, tables, spectra, strict=True)],
        "left_out": list(left_out),
    }
    pages = list(spectrum_pages(heads, spectra))
    if has_tokens:
        token_ids = select_tokens(loaded, samples, options.vocabulary)
        names = [token_text(loaded, token_id) for token_id in token_ids]
        numbers |= {"symbols": token_ids, "names": names}
        pairs = list(zip(heads, tables, strict=True))
        for which, circuit, needed in (("qk", qk_circuit, "embedding"), ("ov", ov_circuit, "unembedding")):
            selected = [(head, table) for head, table in pairs if getattr(table, needed) is not None]
            if not selected:
                continue
            scores = [circuit(head, table, token_ids) for head, table in selected]
            numbers[f"{which}_tables"] = to_json(torch.stack(scores))
            numbers[f"{which}_heads"] = [[head.path, head.head] for head, _ in selected]
            pages += token_pages(scores, [head.name for head, _ in selected], names, which)
    return InspectionResult(
        numbers=numbers,
        rows=[_row(head, spectrum) for head, spectrum in zip(heads, spectra, strict=True)],
        pages=pages,
        summary="copying: sum of eigenvalues over sum of their absolute values, from -1 to 1; left out: "
        f"{'; '.join(left_out) or 'nothing'}",
    )


@dataclass
class HeadSpectra:
    """The spectra of one head. copying: of OV over the whole vocabulary; None if the head has no such circuit."""

    qk: Spectrum
    ov: Spectrum
    copying: Spectrum | None


def _numbers(head: HeadCircuits, tables: TokenTables, spectra: HeadSpectra) -> dict[str, object]:
    return {
        "path": head.path,
        "head": head.head,
        "kv_head": head.kv_head,
        "qk": _spectrum_numbers(spectra.qk),
        "ov": _spectrum_numbers(spectra.ov),
        "token_copying": None if spectra.copying is None else spectra.copying.positive,
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


def _row(head: HeadCircuits, spectra: HeadSpectra) -> dict[str, str]:
    return {
        "head": head.name,
        "|QK|": f"{spectra.qk.norm:.3g}",
        "QK rank": f"{spectra.qk.effective_rank:.1f}",
        "positive": _positive(spectra.qk),
        "|OV|": f"{spectra.ov.norm:.3g}",
        "OV rank": f"{spectra.ov.effective_rank:.1f}",
        "copying": _positive(spectra.ov),
        "token copying": _positive(spectra.copying),
    }


def _positive(spectrum: Spectrum | None) -> str:
    if spectrum is None or math.isnan(spectrum.positive):
        return ""
    return f"{spectrum.positive:+.2f}"


def spectrum_pages(heads: Sequence[HeadCircuits], spectra: Sequence[HeadSpectra]) -> Iterator[Page]:
    """Yield the singular values of QK and OV, and the eigenvalues of OV in the complex plane, of every head."""
    title = (
        "Circuits of each head (norms folded in): singular values of QK and OV, descending; below, the eigenvalues of "
        "OV in the complex plane: those with a positive real part copy"
    )
    end = max(max(float(head.qk.singular.max()), float(head.ov.singular.max())) for head in spectra)
    for part in split_pages(range(len(heads)), _HEADS):
        singular = [_singular(heads[index].name, spectra[index], end) for index in part]
        singular[0].ylabel = "singular value"
        singular[0].legend = "best"
        eigenvalues = [_eigenvalues(spectra[index].ov) for index in part]
        rows: list[Sequence[Panel | None]] = []
        for pair in zip(grid(singular, _PAGE_COLUMNS), grid(eigenvalues, _PAGE_COLUMNS), strict=True):
            rows += pair
        yield Page("circuits", title, rows, (2.3, 1.75))


def _singular(name: str, spectra: HeadSpectra, end: float) -> Panel:
    style: dict[str, Any] = {"markersize": 2.5, "linewidth": 0.8}
    marks = [
        mark("plot", spectra.qk.singular.numpy(), color=_QK_COLOUR, marker="o", label="QK", **style),
        mark("plot", spectra.ov.singular.numpy(), color=_OV_COLOUR, marker="s", label="OV", **style),
    ]
    return Panel(marks, name, numbers=True, whole="x", ylim=(0, end * 1.05))


def _eigenvalues(ov: Spectrum) -> Panel:
    values = ov.eigenvalues
    if not len(values):
        return Panel([text(0.5, 0.5, "from another sequence:\nno eigenvalues")], frame=False)
    limit = max(float(values.abs().max()) * 1.15, 1e-9)
    marks = [
        mark("axhline", 0, color="#b0b0b0", linewidth=0.5),
        mark("axvline", 0, color="#b0b0b0", linewidth=0.5),
        mark("scatter", values.real.numpy(), values.imag.numpy(), s=9, color=_OV_COLOUR, linewidths=0),
    ]
    title = f"OV eigenvalues, copying {ov.positive:+.2f}"
    return Panel(marks, title, numbers=True, xlim=(-limit, limit), ylim=(-limit, limit))


def token_pages(
    tables: Sequence[Tensor], head_names: Sequence[str], tokens: Sequence[str], which: str
) -> Iterator[Page]:
    """Yield one panel for each head: a table (S, S) with tokens as rows and columns; zero is white."""
    panels_of_page = 12
    most_columns = 4
    if len(tokens) > 16:  # tables with many labels are drawn larger
        panels_of_page = 4
        most_columns = 2
    for part in split_pages(range(len(tables)), panels_of_page):
        columns = min(most_columns, len(part))
        panels = []
        for index in part:
            heat = signed(tables[index])
            panels.append(Panel([heat], head_names[index], x_tokens=tokens, y_tokens=tokens, bar=True))
        side = panel_side(columns, len(tokens))
        yield Page(f"circuits_{which}", _TITLES[which], grid(panels, columns), (side + 0.5, side))
