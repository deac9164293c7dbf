"""One function for each kind of looking: from a loaded run to numbers, rows, pictures and words."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from blockyard.errors import UserError
from blockyard.inspect import _token_circuits
from blockyard.inspect import attention_weights as attentions
from blockyard.inspect import circuits as heads_of
from blockyard.inspect import mixing as mixings
from blockyard.inspect.figures import circuits_figure as draw
from blockyard.inspect.options import Options
from blockyard.inspect.pattern import pattern
from blockyard.inspect.run import Found
from blockyard.inspect.samples import samples, symbol_text
from blockyard.inspect.spectrum import Spectrum, spectrum
from blockyard.ops.maps import smaller
from blockyard.runs.load import Loaded

SIDE = 128  # most rows and columns of a table in the JSON; neighbours are put together beyond
COUNTED = 64  # validation samples whose most frequent symbols are shown
_DIGITS = 5
_BETWEEN = {
    "qk": "QK between symbols: how much a query (row) wants a key (column)",
    "ov": "OV between symbols: what seeing one (column) adds to another's logit (row)",
}


def attention(loaded: Loaded, options: Options, folder: Path) -> Found:
    """Maps, one query's weights, entropies. Raises UserError where nothing attends."""
    from blockyard.inspect.figures import attention_figure as draw

    rows = samples(loaded, options)
    found = attentions.attention(loaded.model, rows, layers=options.layers, heads=options.heads)
    if not found:
        raise UserError(
            f"{loaded.folder.name} has no attention layer here; `blockyard inspect mixing` looks at any mixer"
        )
    for layer in found:
        attentions.one_query(layer, options.query)
    layers = [
        {
            "path": layer.path,
            "heads": layer.heads,
            "entropy": numbers(layer.entropy),
            "entropy_share": numbers(layer.share),
            "prefix": layer.prefix,
            "grid": layer.grid,
            "queries": layer.queries,
            "keys": layer.keys,
            "weights": numbers(smaller(layer.weights, SIDE)),
        }
        for layer in found
    ]
    lines = [
        (
            layer.name,
            str(head),
            "" if math.isnan(layer.entropy[place]) else f"{layer.entropy[place]:.3f}",
            "" if math.isnan(layer.share[place]) else f"{layer.share[place]:.1%}",
            f"{float(layer.weights[place].max()):.3f}",
        )
        for layer in found
        for place, head in enumerate(layer.heads)
    ]
    return Found(
        {"samples": _numbers_of(rows), "layers": layers},
        ("layer", "head", "entropy, nats", "of the most", "largest weight"),
        lines,
        draw.draw(found, rows[0], options.query, folder),
        f"entropy: mean over the queries of {_words(rows)}; maps: {rows[0].name}",
    )


def mixing(loaded: Loaded, options: Options, folder: Path) -> Found:
    """The token-mixing picture of every layer."""
    from blockyard.inspect.figures import mixing_figure as draw

    rows = samples(loaded, options)
    model, doubled = mixings.in_double(loaded.model, rows)
    found = mixings.mixing(model, doubled, of=options.of, layers=options.layers, probes=options.probes)
    probes = found[0].probes
    error = max(layer.error for layer in found)
    how = f"estimated from {probes} random directions a token (standard error {error:.0%})" if probes else "exact"
    words = f"{'Mean over' if len(rows) > 1 else 'Of'} {_words(rows)}; {how}"
    layers = [
        {
            "path": layer.path,
            "mixer": layer.mixer,
            "pattern": _pattern(layer),
            "differs": layer.differs,
            "probes": layer.probes,
            "standard_error": None if math.isnan(layer.error) else layer.error,
            "prefix": layer.prefix,
            "grid": layer.grid,
            "rows": layer.rows,
            "columns": layer.columns,
            "norms": numbers(draw.joined(layer.norms, SIDE)),
        }
        for layer in found
    ]
    lines = [
        (
            layer.name,
            layer.mixer,
            _pattern(layer),
            f"{float(layer.norms.square().mean(0).sum().sqrt()):.3g}",
            f"{_own_share(layer.norms):.0%}" if not layer.memory else "",
            "" if layer.differs is None else f"{layer.differs:.1%}",
        )
        for layer in found
    ]
    return Found(
        {"of": options.of, "samples": _numbers_of(rows), "layers": layers},
        ("layer", "mixer", "reads from", "gain", "from itself", "differs between samples"),
        lines,
        draw.draw(found, words, folder),
        f"{words}. gain: |dy/dx|_F / sqrt(N D); from itself: the diagonal's share of its square",
    )


def circuits(loaded: Loaded, options: Options, folder: Path) -> Found:
    """QK and OV circuits of every head, and between symbols where the model reads and writes them."""
    symbolic = getattr(getattr(loaded.model, "embedder", None), "table", None) is not None
    if options.vocabulary is not None and not symbolic:
        raise UserError("vocabulary: the model does not read symbols, so it has no circuits between them")
    rows = samples(loaded, Options(samples=COUNTED if symbolic and options.vocabulary is None else 1))
    found = heads_of.circuits(loaded.model, rows[0].batch, layers=options.layers, heads=options.heads)
    known = _token_circuits.tables(loaded.model, found)
    symbolic = any(table.embed is not None for table in known)
    if options.vocabulary is not None and not symbolic:
        raise UserError("vocabulary: none of these heads compares symbols, so there are no circuits between them")
    qk = [spectrum(head.q.T, head.k, one_space=not head.cross) for head in found]
    ov = [spectrum(head.o, head.v, one_space=not head.cross) for head in found]
    copies = [_token_circuits.copying(*pair) for pair in zip(found, known, strict=True)]
    layers: list[dict[str, Any]] = []
    lines = []
    for head, table, q, o, copy in zip(found, known, qk, ov, copies, strict=True):
        layers.append(
            {
                "path": head.path,
                "head": head.head,
                "kv_head": head.kv_head,
                "qk": _spectrum(q),
                "ov": _spectrum(o),
                "token_copying": None if copy is None else copy.positive,
                "left_out": [*head.left_out, *table.left_out],
            }
        )
        signs = [None if one is None or math.isnan(one.positive) else f"{one.positive:+.2f}" for one in (q, o, copy)]
        sizes = [(f"{one.norm:.3g}", f"{one.rank:.1f}") for one in (q, o)]
        lines.append((head.name, *sizes[0], signs[0] or "", *sizes[1], signs[1] or "", signs[2] or ""))
    left_out = dict.fromkeys(word for layer in layers for word in layer["left_out"])
    extra: dict[str, Any] = {}
    pictures = [draw.draw_spectra(found, qk, ov, folder)]
    if symbolic:
        symbols = _token_circuits.vocabulary(loaded, rows, options.vocabulary)
        names = [symbol_text(loaded, symbol) for symbol in symbols]
        extra = {"symbols": symbols, "names": names}
        for which, title in _BETWEEN.items():
            some = [
                (h, t) for h, t in zip(found, known, strict=True) if (t.embed if which == "qk" else t.out) is not None
            ]
            if not some:
                continue
            table_of = _token_circuits.qk_table if which == "qk" else _token_circuits.ov_table
            tables = [table_of(head, table, symbols) for head, table in some]
            extra[f"{which}_tables"] = numbers(torch.stack(tables))
            extra[f"{which}_heads"] = [[head.path, head.head] for head, _ in some]
            pictures.append(draw.draw_tokens(tables, [head.name for head, _ in some], names, which, title, folder))
    words = "copying: sum of eigenvalues over sum of their sizes, from -1 to 1; left out: "
    return Found(
        {"heads": layers, "left_out": list(left_out), **extra},
        ("head", "|QK|", "rank", "positive", "|OV|", "rank", "copying", "copying symbols"),
        lines,
        chain.from_iterable(pictures),
        words + ("; ".join(left_out) or "nothing"),
    )


def numbers(tensor: torch.Tensor) -> Any:
    """A tensor as nested lists of rounded numbers, None for what is none."""
    return _rounded(tensor.tolist())


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _spectrum(one: Spectrum) -> dict[str, Any]:
    return {
        "norm": one.norm,
        "effective_rank": one.rank,
        "positive": None if math.isnan(one.positive) else one.positive,
        "singular": numbers(one.singular),
        "eigenvalues": [numbers(torch.view_as_real(value)) for value in one.eigenvalues],
    }


def _pattern(layer: mixings.LayerMixing) -> str:
    """What a layer's picture looks like; the grid is that of its own row, not of another that it reads."""
    return pattern(layer.norms, None if layer.memory else layer.grid, layer.prefix)


def _own_share(norms: torch.Tensor) -> float:
    power = norms.square()
    return float(power.diagonal().sum() / power.sum().clamp_min(1e-30))


def _numbers_of(rows: list[Any]) -> list[int | None]:
    return [row.number for row in rows]


def _words(rows: list[Any]) -> str:
    return rows[0].name if len(rows) == 1 else f"validation samples {rows[0].number} to {rows[-1].number}"
