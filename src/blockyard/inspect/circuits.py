"""QK and OV circuits of attention heads, computed from the weights.

Source: Elhage et al. 2021, A Mathematical Framework for Transformer Circuits (transformer-circuits.pub), the
    section on QK and OV circuits, and the full circuits between tokens
Equation: QK_h = W_Q^T W_K / sqrt(K), OV_h = W_O W_V; between tokens QK: E QK_h E^T, OV: U OV_h E^T, with E (V, D) the
    token embedding and U (V, D) the weights of the model's head

QK compares the vectors of two tokens, OV moves a vector from one token to another. Both are D x D and of rank K at
most. Modules before and behind a head that are linear up to one positive factor a token are folded in: the gain of a
norm, the centering of a layer norm, a scale. Left out are these factors, biases, positions, and for rotations all
distances but zero.

With norms in the stream itself (post-norm), a head reads the stream, and nothing is folded in. Keys and values of
cross-attention read another sequence, after the norm at its end.

E is the embedding of the sequence that a head reads, such as an encoder's. U applies only to heads that write to the
stream that the model's head reads. Cross-attention and latents have neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from blockyard.block.layer_scale import Scale
from blockyard.block.no_residual import NoResidual
from blockyard.block.pre_norm import ScaledNorm
from blockyard.block.rezero import Gate
from blockyard.contracts import Batch, Model, Position, TextTokenizer
from blockyard.errors import UserError
from blockyard.inspect.jacobian import Spectrum, spectrum
from blockyard.inspect.labels import layer_name
from blockyard.inspect.recorded_calls import MixerContext, mixer_contexts, mixing_modules
from blockyard.inspect.samples import Sample, select_heads, select_layers
from blockyard.model._block_stack import BlockStack
from blockyard.model._transformer import Tower
from blockyard.norm.batch import Batch as BatchNorm
from blockyard.norm.rms import RMS
from blockyard.residual.add import Add
from blockyard.runs.load import Loaded
from blockyard.token_mixer._query_key_norms import linear_part
from blockyard.token_mixer.attention import Attention
from blockyard.token_mixer.memory_attention import MemoryAttention
from blockyard.token_mixer.strict_attention import StrictAttention

DEFAULT_TOKENS = 32
MAX_TOKENS = 4 * DEFAULT_TOKENS  # of a readable figure

Cache = dict[str, Tensor]  # tables in float64 by name, so that each is converted once


@dataclass
class HeadCircuits:
    """One head in float64.

    q, k, v: (K, D), from the stream, with norms folded in and q / sqrt(K); o: (D, K), into the stream
    cross: k and v read another sequence, with vectors of another space
    left_out: descriptions of the parts that the circuits do not contain
    """

    path: str
    head: int
    kv_head: int
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    cross: bool = False
    left_out: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The readable name of the head."""
        return f"{layer_name(self.path)} head {self.head}"

    @property
    def qk(self) -> Tensor:
        """(D, D): a query's vector on the left, a key's on the right."""
        return self.q.T @ self.k

    @property
    def ov(self) -> Tensor:
        """(D, D): from the vector of an attended token, on the right, to the addition to the stream, on the left."""
        return self.o @ self.v


def head_circuits(
    model: nn.Module,
    batch: Batch,
    *,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
) -> list[HeadCircuits]:
    """Return every head of every attention layer. `batch` is run once, to find the norms before each mixer.

    Raises UserError if a selected layer, or every layer, has another token mixer than attention.
    """
    mixers = mixing_modules(model, "mixer")
    paths = select_layers(mixers, layers)
    attention: dict[str, Attention] = {}
    other: dict[str, str] = {}  # names of classes
    for path in paths:
        mixer = mixers[path]
        if isinstance(mixer, Attention):
            attention[path] = mixer
        else:
            other[path] = type(mixer).__name__
    if other and (layers is not None or len(other) == len(paths)):
        names = ", ".join(sorted(set(other.values())))
        raise UserError(
            f"circuits need attention; the token mixer of {layer_name(next(iter(other)))} is {names}. "
            "`blockyard inspect mixing` works for any mixer"
        )
    reading = [path for path, mixer in attention.items() if mixer.takes_keys]
    if reading and layers is not None:
        raise UserError(f"{layer_name(reading[0])} reads keys and values of an earlier layer, so it has no circuits")
    for path in reading:
        del attention[path]
    contexts = mixer_contexts(model, dict(attention), batch)
    circuits = []
    for path, mixer in attention.items():
        circuits += _heads(path, mixer, contexts[path], heads, model)
    return circuits


def fold_weights(module: nn.Module | None) -> tuple[Tensor | None, list[str]]:
    """Return the linear part (D, D) of a norm or scale, and descriptions of the rest; None without a linear part.

    A norm is linear up to one positive factor a token.
    """
    if module is None or isinstance(module, nn.Identity):
        return None, []
    if isinstance(module, ScaledNorm):
        matrix, left_out = fold_weights(module.norm)
        if matrix is not None:
            matrix = matrix * module.factor
        return matrix, left_out
    name = type(module).__name__
    weight = module.gain if isinstance(module, RMS) else getattr(module, "weight", None)
    gain = None
    if weight is not None:
        gain = weight.detach().double().cpu()
    left_out = []
    if getattr(module, "bias", None) is not None:
        left_out.append(f"the bias of {name}")
    if isinstance(module, Scale | Gate):
        assert gain is not None
        if gain.numel() == 1:
            return gain, left_out
        return torch.diag(gain), left_out
    if isinstance(module, BatchNorm):
        assert gain is not None
        return torch.diag(gain / (module.running_var.double().cpu() + module.eps).sqrt()), left_out
    if not isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return None, [f"{name}, which is not folded in"]
    if gain is None:
        gain = torch.ones(module.normalized_shape[-1]).double()
    matrix = torch.diag(gain)
    if isinstance(module, nn.LayerNorm):
        matrix = matrix - matrix.mean(1, keepdim=True)  # the gain after centering
    return matrix, [f"the factor by which {name} divides each token", *left_out]


def _heads(
    path: str, mixer: Attention, context: MixerContext, heads: tuple[int, ...] | None, model: nn.Module
) -> list[HeadCircuits]:
    """Return the circuits of the selected heads of one mixer."""
    q, k, v = (matrix.detach().double().cpu() for matrix in mixer.matrices()[:3])
    if mixer.tied_kv:
        v = k
    out = torch.eye(mixer.heads * mixer.value_dim).double()
    if isinstance(mixer.proj_out, nn.Linear):
        out = mixer.proj_out.weight.detach().double().cpu()  # (D, H values or output)
    if isinstance(mixer.join, nn.Linear):
        out = out @ mixer.join.weight.detach().double().cpu()  # (D, H values)
    fold, left_out = fold_weights(context.before)
    if fold is not None:
        q = q @ fold
        if not context.cross:  # keys and values of the other sequence do not pass this norm
            k = k @ fold
            v = v @ fold
    left_out += _left_out_of_context(context)
    for module in context.after:
        fold, more = fold_weights(module)
        left_out += more
        if fold is None:
            continue
        out = fold * out if fold.ndim == 1 else fold @ out
    position = None
    if not context.cross:
        position = _scheme(model, path)
    left_out += _left_out_of_mixer(mixer, position)
    q = linear_part(mixer.q_norm, q.unflatten(0, (mixer.heads, -1)))  # (H, K, D)
    k = linear_part(mixer.k_norm, k.unflatten(0, (mixer.kv_heads, -1)))  # (H', K, D)
    v = v.unflatten(0, (mixer.kv_heads, -1))  # (H', K, D)
    out = out.unflatten(1, (mixer.heads, -1))  # (D, H, K)
    # Factors on the scores go into the queries, so that QK is their product with the keys alone.
    q = q * (mixer.scale or mixer.head_dim**-0.5)
    if mixer.scores.factor is not None:
        q = q * mixer.scores.factor.detach().to(q)[:, None, None]
    if mixer.scores.channels is not None:
        q = q * mixer.scores.channel_factors().detach().to(q).mT
    circuits = []
    for head in select_heads(mixer.heads, heads):
        group = head // (mixer.heads // mixer.kv_heads)  # heads of a group share keys and values
        circuits.append(
            HeadCircuits(path, head, group, q[head], k[group], v[group], out[:, head], context.cross, left_out)
        )
    return circuits


def _left_out_of_context(context: MixerContext) -> list[str]:
    """Return descriptions of the norms around a mixer that its circuits do not contain."""
    left_out = []
    if context.in_stream:
        left_out.append("the norms in the stream: a head reads it after them")
    if context.cross:
        text = "the layers of the other sequence: keys and values read its final vectors"
        if context.memory_norm is not None:
            text += f", after {type(context.memory_norm).__name__}, which is not folded in"
        left_out.append(text)
    return left_out


def _scheme(model: nn.Module, path: str) -> Position | None:
    """Return the position scheme of a mixer's layer; layers of one kind share it."""
    owner, in_stack, inside = path.rpartition("blocks.")
    if in_stack:
        stack = model.get_submodule(owner.removesuffix("."))
        if isinstance(stack, BlockStack):
            return stack.position_of(int(inside.partition(".")[0]))
    scheme: Position | None = getattr(model, "position", None)
    return scheme


def _left_out_of_mixer(mixer: Attention, position: Position | None) -> list[str]:
    """Return descriptions of the parts of a mixer that its circuits do not contain.

    position: acts on the queries and keys of the mixer; None in cross-attention, where none does
    """
    left_out = []
    if mixer.value_sources is not None and (mixer.value_sources.takes or mixer.value_sources.table is not None):
        left_out.append("values of the first layer and vectors of token ids: OV is of the layer's own values")
    if isinstance(mixer, MemoryAttention):
        left_out.append("trained keys and values")
    if isinstance(mixer, StrictAttention) and mixer.question is not None:
        left_out.append("the trained query vector shared by all tokens: QK uses each token's own vector as its query")
    if mixer.biased:
        left_out.append("biases of the projections")
    if not isinstance(mixer.q_norm, nn.Identity):
        left_out.append("the factor by which the q/k norm divides (its gain is folded in)")
    if mixer.projections is not None and mixer.projections.maps:
        left_out.append("the map of the token in front of queries, keys and values")
    if mixer.conv is not None:
        left_out.append("the short convolution of queries, keys and values")
    if mixer.scores.by_count:
        left_out.append("the logarithm of the number of keys, a factor on the scores of each token")
    if mixer.scores.cap is not None:
        left_out.append("the cap on the scores")
    if mixer.scores.shaping.sink is not None:
        left_out.append("the sink")
    if mixer.exclusive:
        left_out.append("the part along a token's own value, which is taken out")
    if mixer.gate_width:
        left_out.append("the gate on what a head has read")
    acts_on: frozenset[str] = frozenset() if position is None else position.acts_on
    if "rotate" in acts_on:
        left_out.append("rotation: QK is that of two tokens at the same position")
    if acts_on & {"bias", "relate"}:
        left_out.append("the position bias on the scores")
    return left_out


@dataclass
class TokenTables:
    """The tables of one head in float64; None if it has no such table.

    embedding: (V, D), of the stream that the head reads
    unembedding: (V, D), the weights that predict from the stream that it writes to, with the final norm folded in
    left_out: descriptions of the parts that the circuits do not contain, and reasons why there are none
    """

    embedding: Tensor | None = None
    unembedding: Tensor | None = None
    left_out: list[str] = field(default_factory=list)


def token_tables(model: Model, heads: Sequence[HeadCircuits]) -> list[TokenTables]:
    """Return the tables of each head."""
    cache: Cache = {}
    return [_head_tables(model, head, cache) for head in heads]


def _head_tables(model: Model, head: HeadCircuits, cache: Cache) -> TokenTables:
    """Return the tables of a head, empty where the stream that it reads is not one of embedded tokens."""
    path = head.path
    tables = TokenTables()
    left_out = tables.left_out
    if getattr(getattr(model, "embedder", None), "table", None) is None:
        return tables
    name = layer_name(path)
    owner, in_stack, inside = path.rpartition("blocks.")
    tower = None
    if in_stack:
        tower = model.get_submodule(owner.removesuffix("."))
    if head.cross or not isinstance(tower, Tower):
        left_out.append(f"token circuits of {name}: its queries and keys are not both of a token sequence")
        return tables
    layer = int(inside.partition(".")[0])
    block = tower.blocks[layer]
    if isinstance(block, NoResidual) and layer:
        left_out.append(f"token circuits of {name}: no_residual carries no embedding past a block")
        return tables
    embedder = getattr(tower, "embedder", model.embedder)
    if embedder is not model.embedder and model.ctx.source is not None:
        left_out.append(f"token circuits of {name}: it reads a source, whose tokens are of another kind")
        return tables
    embedding = _cached(cache, f"{owner}embed", embedder.table, embedder.scale)
    if embedding is None or embedding.shape[1] != head.q.shape[1]:
        left_out.append(f"token circuits of {name}: the stream also holds a position code")
        return tables
    fold, left_out_of_norm = fold_weights(tower.embed_norm)
    if fold is not None:
        embedding = embedding @ fold.T
    tables.embedding = embedding
    left_out += left_out_of_norm
    if not isinstance(tower.residual, Add):
        choice = type(tower.residual).__module__.rpartition(".")[2]
        left_out.append(f"residual={choice}: the weights with which it joins the outputs of blocks")
    if tower.ngrams is not None:
        left_out.append("the vectors of n-grams")
    if tower.smear is not None:
        left_out.append("the smear of the token before")
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
    if tower.backout is not None:
        left_out.append("what backout takes out of the stream")
    if getattr(model.head, "gain", None) is not None:
        left_out.append("the gain of the head")
    if getattr(model.head, "softcap", None) is not None:
        left_out.append("the soft cap of the head")
    return tables


def _cached(cache: Cache, name: str, table: Tensor | None, scale: float = 1.0) -> Tensor | None:
    """Return a table in float64, converted once."""
    if table is None:
        return None
    if name not in cache:
        cache[name] = table.detach().double().cpu() * scale
    return cache[name]


def _unembedding(model: Model, tower: Tower, cache: Cache) -> Tensor:
    """Return the weights of the model's head with the final norm folded in, (V, D)."""
    if "unembedding" not in cache:
        weight = _matrices(model.head)[0].detach().double().cpu() * getattr(model.head, "scale", 1.0)
        fold, _ = fold_weights(tower.final_norm)
        if fold is not None:
            weight = weight @ fold
        cache["unembedding"] = weight
    return cache["unembedding"]


def _no_unembedding(model: nn.Module, tower: Tower, block: nn.Module, embedding: Tensor) -> str | None:
    """Return why the head has no linear path to predictions of the same tokens, or None."""
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
    """Return the weight matrices of the model's head."""
    if head is None:
        return []
    return [w for w in head.parameters() if w.ndim == 2]


def qk_circuit(head: HeadCircuits, tables: TokenTables, token_ids: list[int]) -> Tensor:
    """Return scores (S, S): how much a query token (row) attends to a key token (column)."""
    assert tables.embedding is not None
    embedding = tables.embedding[token_ids]
    return (embedding @ head.q.T) @ (embedding @ head.k.T).T


def ov_circuit(head: HeadCircuits, tables: TokenTables, token_ids: list[int]) -> Tensor:
    """Return logits (S, S): the addition to the logit of one token (row) by attending to another (column)."""
    assert tables.embedding is not None
    assert tables.unembedding is not None
    return (tables.unembedding[token_ids] @ head.o) @ (tables.embedding[token_ids] @ head.v.T).T


def copying_spectrum(head: HeadCircuits, tables: TokenTables) -> Spectrum | None:
    """Return the spectrum of the OV circuit over the whole vocabulary; None if the head has none."""
    if tables.embedding is None or tables.unembedding is None:
        return None
    return spectrum(tables.unembedding @ head.o, head.v @ tables.embedding.T)


def select_tokens(loaded: Loaded, samples: list[Sample], text: str | None) -> list[int]:
    """Return the token ids of `text`, or the most frequent ones of the samples.

    Sources count if they are of the same tokens.
    """
    if text is None:
        of_one_tokenizer = loaded.components.source_tokenizer is loaded.tokenizer
        counts = Counter[int]()
        for sample in samples:
            counts.update(sample.batch.inputs[0].tolist())
        for sample in samples:
            if of_one_tokenizer and sample.batch.source is not None:
                counts.update(sample.batch.source[0].tolist())
        return sorted(token_id for token_id, _ in counts.most_common(DEFAULT_TOKENS))
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"vocabulary: {loaded.folder.name} reads {loaded.data.spec.things}, not text")
    token_ids = list(dict.fromkeys(loaded.tokenizer.encode(text)))
    if len(token_ids) > MAX_TOKENS:
        raise UserError(f"vocabulary: it has {len(token_ids)} different tokens, at most {MAX_TOKENS} are readable")
    return token_ids
