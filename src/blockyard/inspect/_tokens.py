"""Circuits between symbols: what a head compares and writes when the stream holds nothing but the table's vectors.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits, the full QK and OV circuits
Equation: QK: E QK_h E^T, OV: U OV_h E^T, with E (V, D) the table of symbols and U (V, D) the head's weights
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import Tensor, nn

from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError
from blockyard.inspect.circuits import HeadCircuits, Spectrum, folded, spectrum
from blockyard.inspect.subject import Sample
from blockyard.runs.load import Loaded

MOST = 32  # symbols, where nobody chooses


@dataclass
class Tables:
    """The table of symbols and the head's weights, both (V, D) in float64; the final norm is folded into `out`."""

    embed: Tensor
    out: Tensor
    left_out: list[str]


def tables(model: nn.Module) -> Tables | None:
    """None where the model does not read symbols and answer with one of the same."""
    embedder, head = getattr(model, "embedder", None), getattr(model, "head", None)
    table = getattr(embedder, "table", None)
    weight = _weight(head)
    if table is None or weight is None or weight.shape != table.shape:
        return None
    fold, said = folded(getattr(model, "final_norm", None))
    out = weight.detach().double().cpu()
    return Tables(table.detach().double().cpu(), out if fold is None else out @ fold, said)


def _weight(head: nn.Module | None) -> Tensor | None:
    """The (V, D) weights that predictions are made with."""
    if head is None:
        return None
    return next((w for name, w in head.named_parameters() if w.ndim == 2), None)


def qk_table(head: HeadCircuits, known: Tables, symbols: list[int]) -> Tensor:
    """(S, S): how much a query of one symbol (row) wants a key of another (column)."""
    some = known.embed[symbols]
    return (some @ head.q.T) @ (some @ head.k.T).T


def ov_table(head: HeadCircuits, known: Tables, symbols: list[int]) -> Tensor:
    """(S, S): what attending to a symbol (column) adds to the answer for another (row)."""
    return (known.out[symbols] @ head.o) @ (known.embed[symbols] @ head.v.T).T


def copying(head: HeadCircuits, known: Tables) -> Spectrum:
    """The spectrum of the OV circuit over the whole vocabulary."""
    return spectrum(known.out @ head.o, head.v @ known.embed.T)


def vocabulary(loaded: Loaded, samples: list[Sample], text: str | None) -> list[int]:
    """The symbols to show: those of `text`, or the most frequent ones of the samples."""
    if text is None:
        counted = Counter(symbol for sample in samples for symbol in sample.batch.inputs[0].tolist())
        return sorted(symbol for symbol, _ in counted.most_common(MOST))
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"vocabulary: {loaded.folder.name} is a model of {loaded.data.spec.things}, not of text")
    symbols = list(dict.fromkeys(loaded.tokenizer.encode(text)))
    if len(symbols) > 4 * MOST:
        raise UserError(f"vocabulary: {len(symbols)} symbols are too many to be read; give {4 * MOST} or fewer")
    return symbols
