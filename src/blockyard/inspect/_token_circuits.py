"""Circuits between tokens: what a head compares and writes when the stream holds nothing but token embeddings.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits, the full QK and OV circuits
Equation: QK: E QK_h E^T, OV: U OV_h E^T, with E (V, D) the token embedding and U (V, D) the weights of the model's head

E is the embedding of the sequence that a head reads, an encoder's own where it has one. U applies only to heads that
write to the stream which the model's head reads. Cross-attention and latents have neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from blockyard.block.no_residual import NoResidual
from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError
from blockyard.inspect.circuits import HeadCircuits, fold_weights
from blockyard.inspect.labels import layer_name
from blockyard.inspect.samples import Sample
from blockyard.inspect.spectrum import Spectrum, spectrum
from blockyard.model._tower import Tower
from blockyard.runs.load import Loaded

DEFAULT_TOKENS = 32
MAX_TOKENS = 4 * DEFAULT_TOKENS  # of a readable figure

Cache = dict[str, Tensor | None]  # tables in float64 by name, so that each is converted once


@dataclass
class TokenTables:
    """The tables of one head in float64; None where it has no such table.

    embedding: (V, D), of the stream that the head reads
    unembedding: (V, D), the weights that predict from the stream that it writes to, with the final norm folded in
    left_out: descriptions of what the circuits do not contain, and why there are none
    """

    embedding: Tensor | None = None
    unembedding: Tensor | None = None
    left_out: list[str] = field(default_factory=list)


def token_tables(model: nn.Module, heads: Sequence[HeadCircuits]) -> list[TokenTables]:
    """Returns the tables of each head."""
    cache: Cache = {}
    return [_head_tables(model, head, cache) for head in heads]


def _head_tables(model: nn.Module, head: HeadCircuits, cache: Cache) -> TokenTables:
    path, tables = head.path, TokenTables()
    left_out = tables.left_out
    if getattr(getattr(model, "embedder", None), "table", None) is None:
        return tables
    name = layer_name(path)
    owner, in_stack, inside = path.rpartition("blocks.")
    tower = model.get_submodule(owner.removesuffix(".")) if in_stack else None
    if head.cross or not isinstance(tower, Tower):
        left_out.append(f"token circuits of {name}: its queries and keys are not both of a token sequence")
        return tables
    layer = int(inside.partition(".")[0])
    block = tower.blocks[layer]
    if isinstance(block, NoResidual) and layer:
        left_out.append(f"token circuits of {name}: no_residual carries no embedding past a block")
        return tables
    embedder = getattr(tower, "embedder", model.embedder)
    embedding = _cached(cache, f"{owner}embed", embedder.table, embedder.scale)
    if embedding is None or embedding.shape[1] != head.q.shape[1]:
        left_out.append(f"token circuits of {name}: the stream also holds a position code")
        return tables
    tables.embedding = embedding
    if "embed" in tower.position.acts_on:
        left_out.append("the position code added to embeddings")
    if not block.needs_final_norm:
        left_out.append("the norms in the stream between embeddings and heads, and between heads and predictions")
    reason = _no_unembedding(model, tower, block, embedding)
    if reason is not None:
        left_out.append(f"OV token circuits of {name}: {reason}")
        return tables
    tables.unembedding = _unembedding(model, tower, cache)
    left_out += fold_weights(tower.final_norm)[1]
    return tables


def _cached(cache: Cache, name: str, table: Tensor | None, scale: float = 1.0) -> Tensor | None:
    if name not in cache:
        cache[name] = None if table is None else table.detach().double().cpu() * scale
    return cache[name]


def _unembedding(model: nn.Module, tower: Tower, cache: Cache) -> Tensor | None:
    if "unembedding" not in cache:
        weight = _matrices(model.head)[0].detach().double().cpu()
        fold, _ = fold_weights(tower.final_norm)
        cache["unembedding"] = weight if fold is None else weight @ fold
    return cache["unembedding"]


def _no_unembedding(model: nn.Module, tower: Tower, block: nn.Module, embedding: Tensor) -> str | None:
    """Returns why the head has no linear path to predictions of the same tokens, or None."""
    if isinstance(block, NoResidual):
        return "no_residual carries nothing past a mixer"
    if tower is not model:
        return "the model does not predict from its stream"
    matrices = _matrices(getattr(model, "head", None))
    if len(matrices) > 1:
        return "the model's head has a hidden layer"
    if matrices and matrices[0].shape == embedding.shape:
        return None
    return "the model does not predict the same tokens"


def _matrices(head: nn.Module | None) -> list[Tensor]:
    """Returns the weight matrices of the model's head."""
    return [] if head is None else [w for w in head.parameters() if w.ndim == 2]


def qk_circuit(head: HeadCircuits, tables: TokenTables, token_ids: list[int]) -> Tensor:
    """Returns scores (S, S): how much a query token (row) attends to a key token (column)."""
    assert tables.embedding is not None
    embedding = tables.embedding[token_ids]
    return (embedding @ head.q.T) @ (embedding @ head.k.T).T


def ov_circuit(head: HeadCircuits, tables: TokenTables, token_ids: list[int]) -> Tensor:
    """Returns logits (S, S): what attending to a token (column) adds to the logit of another (row)."""
    assert tables.embedding is not None
    assert tables.unembedding is not None
    return (tables.unembedding[token_ids] @ head.o) @ (tables.embedding[token_ids] @ head.v.T).T


def copying_spectrum(head: HeadCircuits, tables: TokenTables) -> Spectrum | None:
    """Returns the spectrum of the OV circuit over the whole vocabulary; None where the head has none."""
    if tables.embedding is None or tables.unembedding is None:
        return None
    return spectrum(tables.unembedding @ head.o, head.v @ tables.embedding.T)


def select_tokens(loaded: Loaded, samples: list[Sample], text: str | None) -> list[int]:
    """Returns the token ids to show: those of `text`, or the most frequent ones of the samples, sources included."""
    if text is None:
        inputs = (x for sample in samples for x in (sample.batch.inputs, sample.batch.source) if x is not None)
        counts = Counter(token_id for x in inputs for token_id in x[0].tolist())
        return sorted(token_id for token_id, _ in counts.most_common(DEFAULT_TOKENS))
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"vocabulary: {loaded.folder.name} reads {loaded.data.spec.things}, not text")
    token_ids = list(dict.fromkeys(loaded.tokenizer.encode(text)))
    if len(token_ids) > MAX_TOKENS:
        raise UserError(f"vocabulary: it has {len(token_ids)} different tokens, at most {MAX_TOKENS} are readable")
    return token_ids
