"""Multi-head attention; with fewer key heads, grouped-query and multi-query attention.

Source: Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), eq. 1; Ainslie et al. 2023, GQA
    (arXiv 2305.13245); kv_every after Brandon et al. 2024, Cross-Layer Attention (arXiv 2405.12981), section 3; gate
    after Qiu et al. 2025, Gated Attention for Large Language Models (arXiv 2505.06708), section 2.2, position G1;
    exclusive after Zhai 2026, Exclusive Self Attention (arXiv 2603.09078); tied_kv after Google 2026, Gemma 4
    (attention_k_eq_v); conv after So et al. 2021, Primer (arXiv 2109.08668), section 4.2; of norms, scores, values and
    maps of their own see _query_key_norms.py, _scores.py, _values.py and _projections.py
Reference: torch.nn.MultiheadAttention; timm layers/attention.py; for kv_every transformers Gemma3nTextAttention; for
    gate transformers Qwen3NextAttention, and x-transformers Attention(gate_values=True, gate_values_headwise=True)
Equation: y = softmax(Q K^T / sqrt(K)) V; exclusive y - (y v^T) v / |v|^2 with the token's own value v in each head;
    with a gate, sigmoid(x W) times that; tied_kv V = x W_K, before its norm and rotation
Cost: O(N^2 D) time, O(N) memory with a fused kernel; a layer that reads keys and values of an earlier one has neither
    a projection nor a cache for them

    kv_every=2     layer 0    q k v --> attention, cache
                                | |
                   layer 1    q +-+---> attention
                   layer 2    q k v --> attention, cache
                                | |
                   layer 3    q +-+---> attention
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import (
    ChoiceOptions,
    Context,
    DepthOrZero,
    Heads,
    Memory,
    Positive,
    Rate,
    Seq,
    TokenMixer,
    Traits,
    Width,
)
from blockyard.ops.attend import attend, prepare
from blockyard.ops.cache import KVCache
from blockyard.ops.linear import linear, residual
from blockyard.ops.mask import FULL, Visibility
from blockyard.ops.rotate import rotate
from blockyard.ops.shaping import CAPPED
from blockyard.token_mixer._caches import ConvolvedCache, EmptyCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes, key_heads
from blockyard.token_mixer._mimetic import Shares, check_mimetic, fill
from blockyard.token_mixer._projections import ALL, Projection, Projections, TokenMap, check_projections, one_product
from blockyard.token_mixer._query_key_norms import SAME_NORMS, QueryKeyNorm, key_norm, query_norm
from blockyard.token_mixer._scores import Scores, ScoreScale, Sink
from blockyard.token_mixer._short_conv import Kernel, ShortConv, last_inputs
from blockyard.token_mixer._values import GatedValueResidual, ValueEmbedding, Values, declared, value_sources
from blockyard.weight_init import Init

OutputGate = Literal["none", "head", "channel"]

KEYS_AND_VALUES = "keys_and_values"  # in `Seq.carry`; those of a window have its size in their name


class SharedKeys(NamedTuple):
    """Keys (B, H', M, K) and values of an earlier layer, which take the place of a layer's own.

    seq: the facts of the keys; None where they are those of the queries
    """

    k: Tensor
    v: Tensor
    seq: Seq | None


class Attention(TokenMixer):
    """Every token reads from every token it may see.

    Options:
        num_kv_heads: number of key and value heads; null means as many as query heads, 1 is multi-query
        key_dim: width of queries and keys in each head; null means model.dim / model.heads
        value_dim: width of values in each head; null means model.dim / model.heads
        output_dim: project the joined heads to this width before the projection to model.dim: a bottleneck of that
            rank; null means a single projection
        qk_norm: norm of queries and keys before rotation, with a trained gain: RMS-normalise each head (true is
            the same), all heads together (full), or by a layer norm of each head; cosine gives vectors of length one,
            and scores a trained factor for each head; sphere the same with one for each channel, after rotation, and
            scores of sqrt(key_dim); false is none
        bias: use biases in the projections
        project: which of queries, keys, values and output have a projection; the others are the token itself, and what
            the heads have read
        fused: compute queries, keys and values in one product, where all three are projections of the token; false
            has three of a third of the width
        map: a channel mixer, as a node, of which queries, keys and values each have one in front of their projections
        dropout: dropout rate on the attention weights
        gate: factors in (0, 1), from the token itself, on what it has read: none, one for each head, or one for each
            channel
        conv: tokens that a short causal convolution of queries, keys and values reads; 0 leaves it out
        score_scale: factor on the scores: null is 1 / sqrt(key_dim); a number in its place; learned, a trained factor
            for each head beside it; log_n, that times the logarithm of the number of keys that a token sees
        softcap: bound on the scores, by a tanh, before position biases; null is none
        sink: a logit of each head that takes weight and gives no value: none; zero, which lets a token read almost
            nothing; or a trained one
        exclusive: take out of what a token reads, in each head, the part along the token's own value
        tied_kv: values are the keys before their norm and rotation, without a projection of their own
        value_residual: how values are joined with those of the first layer: not at all; mixed, their mean; learned, a
            sum with two trained numbers a layer; gated, by a weight for each token and head
        value_embedding: which layers add trained vectors of the token ids to their values: none, all, or every second
            one, the last among them (alternate)
        mimetic: initial weights whose products are near the identity: its share, and that of random numbers, in the
            product of queries and keys, and in that of values and output, there with a minus, such as [0.7, 0.4]; null
            draws each projection by itself
        kv_every: every so many layers one has keys and values of its own, and the layers up to the next read them;
            1 is all, 0 none: a member of a cycle whose layers read those of another member
    """

    traits: Traits = Traits(
        causal=True,
        padding=True,
        packing=True,
        cross=True,
        equivariant=True,
        ports=frozenset({"queries_and_keys", "scores"}),
        gives=frozenset({KEYS_AND_VALUES}),
    )
    same_values: ClassVar[dict[str, dict[str, bool]]] = {"qk_norm": SAME_NORMS}
    window: int | None = None  # as in `ops.attend`; set by subclasses
    strict: bool = False
    chunked: bool = False  # `window` is the size of chunks

    def __init__(
        self,
        ctx: Context,
        *,
        num_kv_heads: Heads | None = None,
        key_dim: Width | None = None,
        value_dim: Width | None = None,
        output_dim: Width | None = None,
        qk_norm: QueryKeyNorm = False,
        bias: bool = False,
        project: tuple[Projection, ...] = ALL,
        fused: bool = True,
        map: TokenMap | None = None,  # noqa: A002 - as a map is called everywhere
        dropout: Rate = 0.0,
        gate: OutputGate = "none",
        conv: Kernel = 0,
        score_scale: ScoreScale = None,
        softcap: Positive | None = None,
        sink: Sink = "none",
        exclusive: bool = False,
        tied_kv: bool = False,
        value_residual: GatedValueResidual = "none",
        value_embedding: ValueEmbedding = "none",
        mimetic: Shares | None = None,
        kv_every: DepthOrZero = 1,
    ) -> None:
        super().__init__()
        options = {"value_residual": value_residual, "value_embedding": value_embedding, "kv_every": kv_every}
        self.traits = _with_carry(self.traits, {"window": self.window, "exclusive": exclusive, "conv": conv, **options})
        check_context(self, ctx)
        kv_heads = key_heads(ctx, num_kv_heads)
        self.causal, self.heads, self.kv_heads, self.dropout = ctx.causal, ctx.heads, kv_heads, dropout
        self.head_dim, self.value_dim = key_dim or ctx.head_dim, value_dim or ctx.head_dim
        self.exclusive, self.tied_kv = exclusive, tied_kv
        of_values = 0 if tied_kv else kv_heads * self.value_dim
        self.widths = [ctx.heads * self.head_dim, kv_heads * self.head_dim, of_values]  # q, k, v
        self._check_values(kv_every)
        if conv and kv_every != 1:
            raise ValueError(
                f"token_mixer.kv_every={kv_every}: layers that read earlier keys have none to convolve; use conv=0"
            )
        self.value_sources = self._value_sources(ctx, value_residual, value_embedding, kv_every)
        gated = self.value_sources is not None and self.value_sources.gated
        self.gate_width = {"none": 0, "head": ctx.heads, "channel": ctx.heads * self.value_dim}[gate]
        self.parts = [*self.widths, *([kv_heads] if gated else []), *([self.gate_width] if self.gate_width else [])]
        self.conv = ShortConv(sum(self.widths), conv) if conv else None
        self.biased = bias
        of_output = ctx.heads * self.value_dim if output_dim is None else output_dim
        check_projections(
            ctx,
            dict(zip(ALL, (*self.widths, of_output), strict=True)),
            project=project,
            fused=fused,
            token_map=map,
            tied_kv=tied_kv,
            bias=bias,
        )
        self.projections: Projections | None = None
        if one_product(project, fused, map):
            self.proj_in = linear(ctx, ctx.dim, sum(self.parts), bias=bias, content=sum(self.widths[:2]))
        else:
            self.projections = Projections(ctx, self.parts, bias=bias, project=project, token_map=map)
        self.q_norm = query_norm(qk_norm, ctx.heads, self.head_dim)
        self.k_norm = nn.Identity() if self.takes_keys else key_norm(qk_norm, kv_heads, self.head_dim)
        self.key_width, width = self.head_dim, ctx.heads * self.value_dim
        self.scores = Scores(
            ctx,
            ctx.heads,
            self.head_dim,
            grows=key_dim is None,
            cosine=qk_norm == "cosine",
            sphere=qk_norm == "sphere",
            score_scale=score_scale,
            softcap=softcap,
            sink=sink,
        )
        self.scale = self.scores.scale
        self.join: nn.Module = nn.Identity()
        if output_dim is not None and output_dim != ctx.dim:
            self.join, width = linear(ctx, width, output_dim, content=0), output_dim
        self.proj_out: nn.Module = residual(ctx, width, ctx.dim, bias=bias) if "output" in project else nn.Identity()
        self.mimetic = None if mimetic is None else (ctx, (mimetic[0], mimetic[1]))
        if mimetic is not None:
            breaks = {
                "num_kv_heads": kv_heads != ctx.heads,
                "key_dim": self.head_dim != ctx.head_dim,
                "value_dim": self.value_dim != ctx.head_dim,
                "output_dim": output_dim is not None,
                "project": len(project) < len(ALL),
                "fused=false": not fused,
                "map": map is not None,
                "tied_kv=true": tied_kv,
                "kv_every": kv_every != 1,
                "gate or value_residual=gated": len(self.parts) > 3,
            }
            check_mimetic(ctx, {f"token_mixer.{option}": bad for option, bad in breaks.items()})

    def init_weights(self, init: Init) -> None:
        """Initialise all projections together if `mimetic` is set; otherwise each initialises itself."""
        if self.mimetic is not None:
            fill(init, *self.mimetic)

    @property
    def shapes_scores(self) -> str | None:
        """What lies between the products and the softmax that not every kernel has; None where nothing does."""
        return CAPPED if self.scores.cap is not None else None

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """With what layers give and take. A layer that does so by an option reads no memory."""
        return _with_carry(cls.traits, options)

    @classmethod
    def has(cls, method: str, options: ChoiceOptions) -> bool:
        """Return whether it has a method; `mix` only with one fused projection in and one out."""
        named = {"project": "project", "fused": "fused", "map": "token_map"}
        settings: dict[str, Any] = {named[name]: value for name, value in options.items() if name in named}
        plain = one_product(**settings) and "output" in options.get("project", ALL)
        return super().has(method, options) and (method != "mix" or plain)

    def matrices(self) -> list[Tensor]:
        """The projections of queries, keys, values and what follows (width, D); the identity where one has none."""
        if self.projections is not None:
            return self.projections.matrices()
        return list(self.proj_in.weight.detach().split(self.parts))

    def _check_values(self, kv_every: int) -> None:
        """Raise ValueError where keys cannot be the values."""
        if self.tied_kv and self.value_dim != self.head_dim:
            raise ValueError(
                f"token_mixer.tied_kv=true: keys of {self.head_dim} channels cannot be values of {self.value_dim}; use "
                "equal key_dim and value_dim, or tied_kv=false"
            )
        if self.tied_kv and kv_every == 0:
            raise ValueError(
                "token_mixer.kv_every=0: these layers have no keys, so tied_kv has no effect; leave it out"
            )

    def _value_sources(
        self, ctx: Context, residual: GatedValueResidual, embedding: ValueEmbedding, kv_every: int
    ) -> Values | None:
        """Set what this layer gives and takes, and return the module that changes its values, or None."""
        name, shape = shared_name(self.window), (self.kv_heads, self.head_dim, self.value_dim)
        if kv_every == 0 and (residual, embedding) != ("none", "none"):
            raise ValueError(
                "token_mixer.kv_every=0: these layers have no values of their own, so value_residual and "
                "value_embedding have no effect; leave them out"
            )
        earlier = ctx.given.get(name)
        self.takes_keys = kv_every == 0 or (earlier is not None and ctx.layer % kv_every != 0)
        if self.takes_keys:
            if earlier is None:
                raise ValueError(
                    f"token_mixer.kv_every=0: layer {ctx.layer} reads the {name.replace('_', ' ')} of an earlier "
                    f"layer, and none gives them; {MEMBER}"
                )
            if earlier != shape:
                raise ValueError(
                    f"token_mixer.kv_every={kv_every}: layer {ctx.layer} reads keys and values of {shape[0]} heads of "
                    f"{shape[1]} and {shape[2]} channels, and an earlier layer gives {earlier[0]} of {earlier[1]} and "
                    f"{earlier[2]}; use the same num_kv_heads, key_dim and value_dim"
                )
            self.takes = self.takes_placed = frozenset({name})
            self.widths = [self.widths[0], 0, 0]
            return None
        self.gives = {name: shape}
        if kv_every > 1:
            self.must_be_taken = frozenset({name})
        return value_sources(self, ctx, self.kv_heads, self.value_dim, residual, embedding)

    def forward(self, x: Tensor, seq: Seq, cache: KVCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D); with `memory`, keys and values come from it and nothing is causal."""
        check_call(self, self.traits, seq, cache, memory)
        if memory is None:
            return self.proj_out(self._mix_tokens(x, seq, cache))  # (B, N, D)
        if cache is not None:
            raise ValueError("cross-attention keeps no cache; pass either cache or memory")
        return self.proj_out(self._cross(x, seq, memory))  # (B, N, D)

    def mix(self, h: Tensor, seq: Seq, cache: KVCache | None = None) -> Tensor:
        """Attention between the projections: h (B, N, queries + keys + values) -> (B, N, H values or output)."""
        return self._mix_parts(self._convolved(h, seq, cache).split(self.parts, dim=-1), seq, cache)

    def _mix_tokens(self, x: Tensor, seq: Seq, cache: KVCache | None) -> Tensor:
        """The same of tokens in front of the projection: x (B, N, D) -> (B, N, H values or output)."""
        if self.projections is None:
            return self.mix(self.proj_in(x), seq, cache)
        parts = self.projections(x, seq)
        if self.conv is not None:
            return self.mix(torch.cat(parts, dim=-1), seq, cache)
        return self._mix_parts(parts, seq, cache)

    def _mix_parts(self, parts: Sequence[Tensor], seq: Seq, cache: KVCache | None) -> Tensor:
        """The same of queries, keys, values and gates, each (B, N, width)."""
        q, k, v, *gates = parts
        if self.takes_keys:
            return self.join(self._gated(self._read(q, seq), parts[-1]))
        q, k = self._heads(q, self.head_dim), self._heads(k, self.head_dim)
        v = k if self.tied_kv else self._heads(v, self.value_dim)  # (B, H', N, values)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.value_sources is not None:
            v = self.value_sources(v, seq, self._heads(gates[0], 1) if self.value_sources.gated else None)
        q, k = rotate(q, k, seq, seq)  # (B, H, N, K), (B, H', N, K)
        k_seq = seq
        if cache is not None:
            k, v, k_seq = cache.append(k, v, seq)  # 2 x (B, H', M, K)
        if seq.given is not None:
            seq.give(shared_name(self.window), SharedKeys(k, v, None if k_seq is seq else k_seq))
        return self.join(self._gated(self._attended(q, k, v, seq, k_seq), parts[-1]))

    def _convolved(self, h: Tensor, seq: Seq, cache: Any) -> Tensor:
        """h (B, N, ...) with queries, keys and values after the short convolution, where there is one."""
        if self.conv is None:
            return h
        qkv = h[..., : sum(self.widths)]
        y = self.conv(qkv, seq, None if cache is None else cache.inputs)
        if cache is not None:
            cache.inputs = last_inputs(cache.inputs, qkv.detach(), self.conv.kernel - 1)
        return torch.cat([y, h[..., sum(self.widths) :]], dim=-1)

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """y (B, N, H values), times the gate, which is the last part (B, N, H | H values), where there is one."""
        if not self.gate_width:
            return y
        gate = gate.sigmoid()
        if self.gate_width == y.shape[-1]:
            return y * gate
        return (y.unflatten(-1, (self.heads, -1)) * gate[..., None]).flatten(2)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, seq: Seq, k_seq: Seq) -> Tensor:
        """Attention to the sequence itself, the last of whose keys are those of the queries: (B, N, H values)."""
        q = self.scores.scaled(q, seq, self._key_seq(k_seq), self.visibility)
        y = self._attend(q, k, v, seq, k_seq, self.visibility)
        if not self.exclusive:
            return y
        own = F.normalize(v[:, :, -len(seq) :].transpose(1, 2), dim=-1)  # (B, N, H', values)
        own = own.repeat_interleave(self.heads // self.kv_heads, dim=2)
        by_head = y.unflatten(-1, (self.heads, -1))  # (B, N, H, values)
        return (by_head - (by_head * own).sum(-1, keepdim=True) * own).flatten(2)

    def _read(self, h: Tensor, seq: Seq) -> Tensor:
        """Attention of the queries h (B, N, H K) to the keys and values of an earlier layer: (B, N, H values)."""
        shared: SharedKeys = seq.carry[shared_name(self.window)]
        q = self.q_norm(self._heads(h, self.head_dim))
        q, _ = rotate(q, q, seq, seq)  # the keys were rotated where they were made
        return self._attended(q, shared.k, shared.v, seq, seq if shared.seq is None else shared.seq)

    @property
    def visibility(self) -> Visibility:
        """What a query of the sequence itself may see."""
        return Visibility(self.causal, self.window, self.strict)

    def init_cache(self, batch_size: int) -> KVCache | EmptyCache | ConvolvedCache:
        """An empty cache; one that stays empty where an earlier layer has the keys and values.

        Raises ValueError where outputs depend on the future.
        """
        check_decodes(self.causal)
        if self.takes_keys:
            return EmptyCache()
        cache = self._key_cache(batch_size)
        return cache if self.conv is None else ConvolvedCache(cache)

    def _key_cache(self, batch_size: int) -> KVCache:
        return KVCache(batch_size, self.kv_heads, self.head_dim, self.value_dim)

    def prepare(self, x: Tensor, seq: Seq) -> None:
        """Builds the masks of a sequence once for all layers, where it needs any."""
        rate, width = self.dropout if self.training else 0.0, max(self.head_dim, self.value_dim)
        k_seq = self._key_seq(seq)
        prepare(seq, self.visibility, self.heads, width, x, rate, k_seq=k_seq, shaping=self.scores.shaping)

    def _cross(self, x: Tensor, seq: Seq, memory: Memory) -> Tensor:
        """Queries from x, keys and values from the memory: (B, N, H values or output)."""
        (q,) = self._projected(x, seq, 0)  # (B, N, H K)
        k, v = self._memory_keys(memory)
        q, k = rotate(self.q_norm(self._heads(q, self.head_dim)), k, seq, memory.seq)
        y = self._attend(self.scores.scaled(q, seq, memory.seq, FULL), k, v, seq, memory.seq, FULL)
        return self.join(self._gated(y, *self._projected(x, seq, -1)) if self.gate_width else y)

    def _memory_keys(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Keys (B, H', M, K) and values of the memory; in inference computed once for all decoding steps."""
        reuse = not (torch.is_grad_enabled() or self.training or torch.compiler.is_compiling())
        stored = memory.seq.memo.get(self) if reuse else None
        if stored is not None and stored[0] is memory.x:
            return stored[1], stored[2]
        k, v = self._projected(memory.x, memory.seq, 1, 2)  # (B, M, ...)
        k = self._heads(k, self.head_dim)
        k, v = self.k_norm(k), k if self.tied_kv else self._heads(v, self.value_dim)
        if reuse:
            memory.seq.memo[self] = (memory.x, k, v)
        return k, v

    def _projected(self, x: Tensor, seq: Seq, *indices: int) -> Sequence[Tensor]:
        """Some of the parts, one behind the other: (B, N, D) -> (B, N, width) each."""
        if self.projections is not None:
            return [self.projections.part(index, x, seq) for index in indices]
        first = indices[0] % len(self.parts)
        widths = self.parts[first : first + len(indices)]
        outputs = slice(sum(self.parts[:first]), sum(self.parts[:first]) + sum(widths))
        bias = self.proj_in.bias
        y = F.linear(x, self.proj_in.weight[outputs], None if bias is None else bias[outputs])
        return y.split(widths, dim=-1)

    def _key_seq(self, seq: Seq) -> Seq:
        """The `Seq` of all keys, where the sequence's own keys have this one."""
        return seq

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seq: Seq,
        k_seq: Seq,
        visibility: Visibility,
    ) -> Tensor:
        """Attention with the heads joined: (B, N, H values)."""
        rate = self.dropout if self.training else 0.0
        shaping = self.scores.shaping
        y = attend(q, k, v, seq, k_seq, visibility, dropout=rate, scale=self.scale, shaping=shaping)
        return y.transpose(1, 2).flatten(2)  # (B, N, H values)

    def _heads(self, x: Tensor, width: int) -> Tensor:
        return x.unflatten(-1, (-1, width)).transpose(1, 2)  # (B, H, N, width)


MEMBER = "put a layer with token_mixer.kv_every=1 in front of it, or use token_mixer.kv_every=2"


def _with_carry(traits: Traits, options: ChoiceOptions) -> Traits:
    """The traits with what layers give and take under these options."""
    traits, name = declared(traits, options), shared_name(options.get("window"))
    if options.get("exclusive"):  # what a memory holds is no token's own value
        traits = replace(traits, cross=False)
    if options.get("conv"):  # reads neighbours, which a set and a memory do not have
        traits = replace(traits, cross=False, equivariant=False, axes=traits.axes - {0})
    every = options.get("kv_every", 1)
    if every == 0:
        return replace(traits, cross=False, gives=traits.gives - {KEYS_AND_VALUES}, takes=frozenset({name}))
    gives = traits.gives - {KEYS_AND_VALUES} | {name}
    return replace(traits, cross=traits.cross and every == 1, gives=gives)


def shared_name(window: int | None) -> str:
    """Return the name under which layers of a window share keys and values: a longer window needs more of them."""
    return KEYS_AND_VALUES if window is None else f"{KEYS_AND_VALUES}_of_a_window_of_{window}"
