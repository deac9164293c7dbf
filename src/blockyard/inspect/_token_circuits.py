"""Circuits between symbols: what a head compares and writes when the stream holds nothing but the table's vectors.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits, the full QK and OV circuits
Equation: QK: E QK_h E^T, OV: U OV_h E^T, with E (V, D) the table of symbols and U (V, D) the head's weights

Of a head, E is the table of the row that it runs over, an encoder's own where it has one; U is there only for heads
that write to the stream which the model's head reads. Cross-attention and latents have neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from blockyard.block.no_residual import NoResidual
from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError
from blockyard.inspect.circuits import HeadCircuits, folded
from blockyard.inspect.samples import Sample, title
from blockyard.inspect.spectrum import Spectrum, spectrum
from blockyard.model._tower import Tower
from blockyard.runs.load import Loaded

MOST = 32  # symbols, where nobody chooses


@dataclass
class Tables:
    """Of one head, in float64: the table of symbols (V, D) of the stream that it reads, and the weights (V, D) that
    answer from the stream that it writes to, the final norm folded in; None where there is no such thing.
    """

    embed: Tensor | None = None
    out: Tensor | None = None
    left_out: list[str] = field(default_factory=list)


def tables(model: nn.Module, heads: Sequence[HeadCircuits]) -> list[Tables]:
    """What of each head can be said in symbols."""
    made: dict[str, Tensor | None] = {}  # each table once, they may be large
    return [_of_head(model, head, made) for head in heads]


def _of_head(model: nn.Module, head: HeadCircuits, made: dict[str, Tensor | None]) -> Tables:
    path, said = head.path, Tables()
    table = getattr(getattr(model, "embedder", None), "table", None)
    if table is None:
        return said
    name = title(path)
    owner, in_stack, inside = path.rpartition("blocks.")
    tower = model.get_submodule(owner.removesuffix(".")) if in_stack else None
    if head.cross or not isinstance(tower, Tower):
        said.left_out.append(f"symbols of {name}: not both of its sides are a row of symbols")
        return said
    number = int(inside.partition(".")[0])
    replaced = isinstance(tower.blocks[number], NoResidual)
    if replaced and number:
        said.left_out.append(f"symbols of {name}: no_residual carries nothing past a block")
        return said
    embedder = getattr(tower, "embedder", model.embedder)
    said.embed = _kept(made, f"{owner}embed", embedder.table, embedder.scale)
    if said.embed is None or said.embed.shape[1] != head.q.shape[1]:
        said.embed = None
        said.left_out.append(f"symbols of {name}: a code beside their vectors takes part of the stream")
        return said
    if "embed" in tower.position.acts_on:
        said.left_out.append("the position's code on symbols")
    if not tower.blocks[number].needs_final_norm:
        said.left_out.append("the norms in the stream between symbols and heads, and between heads and the answer")
    why = "its stream is not the one that is answered from" if tower is not model else None
    why = "no_residual carries nothing past a mixer" if replaced else why
    why = _no_answer(model, said.embed) if why is None else why
    if why is not None:
        said.left_out.append(f"OV to symbols of {name}: {why}")
        return said
    if "out" not in made:
        weight = _kept(made, "out", _weights(model.head)[0])
        fold, _ = folded(tower.final_norm)
        made["out"] = weight if fold is None or weight is None else weight @ fold
    said.out = made["out"]
    said.left_out += folded(tower.final_norm)[1]
    return said


def _kept(made: dict[str, Tensor | None], name: str, table: Tensor | None, scale: float = 1.0) -> Tensor | None:
    if name not in made:
        made[name] = None if table is None else table.detach().double().cpu() * scale
    return made[name]


def _no_answer(model: nn.Module, embed: Tensor) -> str | None:
    """Why the head's weights do not answer with the same symbols, or None."""
    found = _weights(getattr(model, "head", None))
    if len(found) > 1:
        return "the head has a hidden layer"
    return None if found and found[0].shape == embed.shape else "the model does not answer with the same symbols"


def _weights(head: nn.Module | None) -> list[Tensor]:
    """The matrices that predictions are made with."""
    return [] if head is None else [w for w in head.parameters() if w.ndim == 2]


def qk_table(head: HeadCircuits, known: Tables, symbols: list[int]) -> Tensor:
    """(S, S): how much a query of one symbol (row) wants a key of another (column)."""
    assert known.embed is not None
    some = known.embed[symbols]
    return (some @ head.q.T) @ (some @ head.k.T).T


def ov_table(head: HeadCircuits, known: Tables, symbols: list[int]) -> Tensor:
    """(S, S): what attending to a symbol (column) adds to the answer for another (row)."""
    assert known.embed is not None
    assert known.out is not None
    return (known.out[symbols] @ head.o) @ (known.embed[symbols] @ head.v.T).T


def copying(head: HeadCircuits, known: Tables) -> Spectrum | None:
    """The spectrum of the OV circuit over the whole vocabulary; None where the head has none."""
    if known.embed is None or known.out is None:
        return None
    return spectrum(known.out @ head.o, head.v @ known.embed.T)


def vocabulary(loaded: Loaded, samples: list[Sample], text: str | None) -> list[int]:
    """The symbols to show: those of `text`, or the most frequent ones of the samples, sources included."""
    if text is None:
        rows = (row for one in samples for row in (one.batch.inputs, one.batch.source) if row is not None)
        counted = Counter(symbol for row in rows for symbol in row[0].tolist())
        return sorted(symbol for symbol, _ in counted.most_common(MOST))
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"vocabulary: {loaded.folder.name} is a model of {loaded.data.spec.things}, not of text")
    symbols = list(dict.fromkeys(loaded.tokenizer.encode(text)))
    if len(symbols) > 4 * MOST:
        raise UserError(f"vocabulary: {len(symbols)} symbols are too many to be read; give {4 * MOST} or fewer")
    return symbols
