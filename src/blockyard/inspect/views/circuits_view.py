"""`blockyard inspect circuits`: QK and OV circuits of attention heads, and between tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from blockyard.errors import UserError
from blockyard.inspect._token_circuits import (
    TokenTables,
    copying_spectrum,
    ov_circuit,
    qk_circuit,
    select_tokens,
    token_tables,
)
from blockyard.inspect.circuits import HeadCircuits, head_circuits
from blockyard.inspect.figures.circuits_figure import draw_spectra, draw_token_circuits
from blockyard.inspect.labels import token_text
from blockyard.inspect.options import Options
from blockyard.inspect.result import InspectionResult, to_json
from blockyard.inspect.samples import load_samples
from blockyard.inspect.spectrum import Spectrum, spectrum
from blockyard.runs.load import Loaded

COUNTED = 64  # validation samples in which the most frequent tokens are counted
_TITLES = {
    "qk": "QK between tokens: how much a query (row) attends to a key (column)",
    "ov": "OV between tokens: what attending to a token (column) adds to the logit of another (row)",
}
_COLUMNS = ("head", "|QK|", "rank", "positive", "|OV|", "rank", "copying", "token copying")


def circuits_view(loaded: Loaded, options: Options, folder: Path) -> InspectionResult:
    """Returns the circuits of every selected head, and those between tokens where the model embeds tokens."""
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
    left_out = list(dict.fromkeys(text for record in records for text in record["left_out"]))
    figures = [draw_spectra(heads, qk, ov, folder)]
    numbers: dict[str, Any] = {"heads": records, "left_out": left_out}
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
) -> tuple[dict[str, Any], list[Iterator[Path]]]:
    """Returns the QK and OV circuits between tokens of the heads that have them: numbers, and figures."""
    pairs = list(zip(heads, tables, strict=True))
    with_circuit = {
        "qk": [pair for pair in pairs if pair[1].embedding is not None],
        "ov": [pair for pair in pairs if pair[1].unembedding is not None],
    }
    numbers: dict[str, Any] = {}
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
) -> dict[str, Any]:
    return {
        "path": head.path,
        "head": head.head,
        "kv_head": head.kv_head,
        "qk": _spectrum_numbers(qk),
        "ov": _spectrum_numbers(ov),
        "token_copying": None if copying is None else copying.positive,
        "left_out": [*head.left_out, *tables.left_out],
    }


def _spectrum_numbers(spectrum: Spectrum) -> dict[str, Any]:
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
