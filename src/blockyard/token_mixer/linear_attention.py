"""Linear attention: weights are products of features, so a sequence is read through a sum of constant size.

Source: Katharopoulos et al. 2020, Transformers are RNNs (arXiv 2006.16236), eq. 5 and 10; rotation of the features
    as in Su et al. 2021, RoFormer (arXiv 2104.09864), eq. 19; polynomial features as in Tsai et al. 2019
    (arXiv 1908.11775), table 1; taylor as in Arora et al. 2024, Based (arXiv 2402.18668), section 4.1; hedgehog after
    Zhang et al. 2024, The Hedgehog and the Porcupine (arXiv 2402.04347), section 4.2; random after Choromanski et al.
    2020, Rethinking Attention with Performers (arXiv 2009.14794), lemma 1 and section 2.4
Reference: the authors' fast_transformers; zoology's TaylorExp; the authors' hedgehog and performer
Equation: y_i = phi(q_i)^T S / phi(q_i)^T z, S = sum_j phi(k_j) v_j^T, z = sum_j phi(k_j)
Cost: O(N D F) time with F features per head: K, 2 K for hedgehog and random, about K^p / p! for polynomials of degree
    p, with p = 2 for taylor; a decoding step takes constant time and memory. Packed sequences of a bidirectional model
    cost O(N^2 D)

A causal sequence is processed in chunks: inside a chunk by a masked product, between chunks through S and z. One
chunk for the whole sequence is the parallel form, chunks of one token are the recurrent form; all agree.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import (
    Because,
    ChoiceOptions,
    Context,
    Length,
    Memory,
    NonNegative,
    Role,
    Seq,
    TokenMixer,
    Traits,
)
from blockyard.ops import mask
from blockyard.ops.autocast import full_precision
from blockyard.ops.linear import linear, residual
from blockyard.ops.mask import FULL
from blockyard.ops.rotate import rotate
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes, check_one_document
from blockyard.token_mixer._values import ValueEmbedding, ValueResidual, declared, value_sources
from blockyard.weight_init import Init

MOST_FEATURES = 4096  # of a head; its state has as many rows
Degree = Annotated[int, Ge(2), Le(8), Because("a polynomial of degree 8 of 8 channels has 12,870 features")]
Feature = Literal["elu", "relu", "polynomial", "polynomial_relu", "taylor", "hedgehog", "random"]
# With these features the weights of rotated vectors would not depend on distances alone.
NOT_ROTATED = ("polynomial_relu", "hedgehog", "random")


class LinearAttention(TokenMixer):
    """Attention without softmax. Documents of a packed sequence are contiguous runs of tokens.

    Options:
        feature: elu is elu(x) + 1; relu is relu(x); polynomial gives weights (c + q k / sqrt(K))^p; polynomial_relu
            gives weights (c + relu(q) relu(k) / sqrt(K))^p; taylor gives weights 1 + s + s^2 / 2 with
            s = q k / sqrt(K), the first terms of e^s; hedgehog is softmax(W x) and softmax(-W x), with trained maps W
            of queries and of keys in each head; random is exp(w x - |x|^2 / 2) for 2 K fixed random w, of queries and
            keys over K^(1/4), with products of mean e^s. polynomial_relu, hedgehog and random take no rotation of
            queries and keys
        degree: p of the polynomial; even without relu, so that no weight is negative
        constant: c of the polynomial; 0 leaves the monomials of degree p alone
        chunk: tokens of a causal sequence processed at a time; affects speed only
        bias: use biases in the projections
        value_residual: how values are joined with the values of the first layer: none; mixed is their mean; learned a
            sum with two trained numbers for each layer
        value_embedding: layers that add trained vectors of the token ids to their values: none, all, or every second
            layer, counted back from the last one (alternate)
    """

    traits = Traits(
        causal=True, padding=True, packing=True, cross=True, equivariant=True, ports=frozenset({"queries_and_keys"})
    )
    incidental: ClassVar[frozenset[str]] = frozenset({"chunk"})
    index: Tensor
    factor: Tensor

    def __init__(
        self,
        ctx: Context,
        *,
        feature: Feature = "elu",
        degree: Degree = 2,
        constant: NonNegative = 1.0,
        chunk: Length = 64,
        bias: bool = False,
        value_residual: ValueResidual = "none",
        value_embedding: ValueEmbedding = "none",
    ) -> None:
        super().__init__()
        options = {"feature": feature, "value_residual": value_residual, "value_embedding": value_embedding}
        self.traits = self.traits_for(options)
        check_context(self, ctx)
        self.causal = ctx.causal
        self.heads = ctx.heads
        self.head_dim = ctx.head_dim
        self.width = ctx.heads * ctx.head_dim
        self.feature = feature
        self.chunk = chunk
        self.constant = constant
        scale = ctx.score_scale(ctx.head_dim)
        # Queries and keys are both divided by it, so that their products are scores q k / sqrt(K).
        self.shrink = ctx.head_dim**0.25 if scale is None else scale**-0.5
        if feature in ("polynomial", "polynomial_relu"):
            self._build_monomials(degree, constant)
        elif (degree, constant) != (2, 1.0):
            raise ValueError(
                f"token_mixer.degree={degree} and token_mixer.constant={constant} are of the polynomial; "
                f"use token_mixer.feature=polynomial, or leave them out with feature={feature}"
            )
        if feature == "taylor":
            self._build_monomials(2, 0.0)
        self.q_map: nn.Module | None = None
        self.k_map: nn.Module | None = None
        if feature == "hedgehog":
            self.q_map = SoftmaxPair(ctx.heads, ctx.head_dim)
            self.k_map = SoftmaxPair(ctx.heads, ctx.head_dim)
        elif feature == "random":
            self.q_map = self.k_map = RandomFeatures(ctx.head_dim, 2 * ctx.head_dim, self.shrink)
        self.proj_in = linear(ctx, ctx.dim, 3 * self.width, bias=bias, content=2 * self.width)
        self.value_sources = value_sources(self, ctx, self.heads, self.head_dim, value_residual, value_embedding)
        self.proj_out = residual(ctx, self.width, ctx.dim, bias=bias)

    @classmethod
    def traits_for(cls, options: ChoiceOptions) -> Traits:
        """Return the traits, without ports for the features of `NOT_ROTATED`."""
        traits = declared(cls.traits, options)
        if options.get("feature") in NOT_ROTATED:
            return replace(traits, ports=frozenset())
        return traits

    def _build_monomials(self, degree: int, constant: float) -> None:
        if degree % 2 and self.feature == "polynomial":
            raise ValueError(
                f"token_mixer.degree={degree}: weights of an odd degree can be negative, and their sum zero; use 2 or "
                "4, or token_mixer.feature=polynomial_relu"
            )
        count = count_monomials(self.head_dim, degree, constant=constant > 0)
        if count > MOST_FEATURES:
            raise ValueError(
                f"token_mixer.degree={degree}: a polynomial of {self.head_dim} channels has {count:,} features a head, "
                f"more than {MOST_FEATURES:,}; use a smaller degree, or more model.heads"
            )
        index, factor = monomials(self.head_dim + (constant > 0), degree)
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("factor", factor, persistent=False)

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D). With `memory`, keys and values come from it and nothing is causal."""
        check_call(self, self.traits, seq, cache, memory)
        if memory is None:
            return self.proj_out(self.mix(self.proj_in(x), seq, cache))  # (B, N, D)
        if cache is not None:
            raise ValueError("cross-attention keeps no cache; pass either cache or memory")
        split = self.width
        bias = self.proj_in.bias
        q = F.linear(x, self.proj_in.weight[:split], None if bias is None else bias[:split])  # (B, N, D)
        kv = F.linear(memory.x, self.proj_in.weight[split:], None if bias is None else bias[split:])  # (B, M, 2 D)
        k, v = kv.chunk(2, dim=-1)  # 2 x (B, M, D)
        return self.proj_out(self._attend(q, k, v, seq, memory.seq, None, causal=False))

    def mix(self, h: Tensor, seq: Seq, cache: StateCache | None = None) -> Tensor:
        """Attention between the projections: h (B, N, 3 H K) -> (B, N, H K)."""
        q, k, v = h.chunk(3, dim=-1)
        if self.value_sources is not None:
            heads = v.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, N, K)
            v = self.value_sources(heads, seq).transpose(1, 2).flatten(2)  # (B, N, H K)
        return self._attend(q, k, v, seq, seq, cache, self.causal)

    def init_cache(self, batch_size: int) -> StateCache:
        """Return an empty state. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return StateCache()

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, seq: Seq, k_seq: Seq, cache: StateCache | None, causal: bool
    ) -> Tensor:
        """q (B, N, H K), k and v (B, M, H K) -> (B, N, H K). Sums are in float32 at least."""
        exact = torch.promote_types(v.dtype, torch.float32)
        q, k, values = (part.to(exact).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        with full_precision(v):
            out = self._weighted_mean(q, k, values, seq, k_seq, cache, causal)  # (B, H, N, K)
        return out.transpose(1, 2).flatten(2).to(v.dtype)  # (B, N, H K)

    def _weighted_mean(
        self, q: Tensor, k: Tensor, v: Tensor, seq: Seq, k_seq: Seq, cache: StateCache | None, causal: bool
    ) -> Tensor:
        """q (B, H, N, K), k and v (B, H, M, K) -> (B, H, N, K)."""
        if self.feature in ("polynomial", "taylor"):  # weights depend on q k alone, so rotation comes first
            q, k = rotate(q, k, seq, k_seq)
            q_rotated, k_rotated = q, k = self._features(q), self._features(k)
        elif self.q_map is not None and self.k_map is not None:
            q_rotated, k_rotated = q, k = self.q_map(q), self.k_map(k)  # (B, H, N, 2 K), (B, H, M, 2 K)
        else:
            # Rotated features may be negative, so the denominator has the unrotated ones (RoFormer, eq. 19).
            q_rotated, k_rotated = q, k = self._features(q), self._features(k)  # (B, H, N, F), (B, H, M, F)
            if "queries_and_keys" in self.traits.ports:  # a scheme may be there for other layers
                q_rotated, k_rotated = rotate(q, k, seq, k_seq)
        if k_seq.valid is not None:
            valid = k_seq.valid[:, None, :, None]  # (B, 1, M, 1)
            k = k * valid
            k_rotated = k_rotated * valid
        if causal:
            numerator, denominator = self._causal_sums((q, q_rotated, k, k_rotated, v), seq, cache)
        else:
            visible = None if seq.segment is None else mask.table(seq, k_seq, FULL)  # (B|1, 1, N, M)
            if visible is None:
                numerator, denominator = full_sums(q, q_rotated, k, k_rotated, v)
            else:
                numerator, denominator = masked_sums(q, q_rotated, k, k_rotated, v, visible)
        reads = denominator > 0  # a query whose weights are all zero reads zero
        return torch.where(reads, numerator, 0.0) / torch.where(reads, denominator, 1.0)

    def _causal_sums(
        self, parts: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], seq: Seq, cache: StateCache | None
    ) -> tuple[Tensor, Tensor]:
        """Return numerator and denominator."""
        # The sums that every token starts from, of a cache or of the prefix.
        base = None if cache is None or cache.parts is None else (cache.parts[0], cache.parts[1])
        if seq.segment is None:
            numerator, denominator, base = chunked_sums(parts, base, None, self.chunk)
            if cache is not None:
                cache.store(*base)
            return numerator, denominator
        check_one_document(self, seq, cache)
        q, q_rotated, k, k_rotated, v = parts
        numerators, denominators = [], []
        p = seq.num_prefix  # every document reads the prefix
        if p:
            prefix = (q[:, :, :p], q_rotated[:, :, :p], k[:, :, :p], k_rotated[:, :, :p], v[:, :, :p])
            numerator, denominator, base = chunked_sums(prefix, None, None, self.chunk)
            numerators, denominators = [numerator], [denominator]
        rest = (q[:, :, p:], q_rotated[:, :, p:], k[:, :, p:], k_rotated[:, :, p:], v[:, :, p:])
        numerator, denominator, _ = chunked_sums(rest, base, seq.segment[:, p:], self.chunk)
        return torch.cat([*numerators, numerator], dim=2), torch.cat([*denominators, denominator], dim=2)

    def _features(self, x: Tensor) -> Tensor:
        """phi(x): (B, H, N, K) -> (B, H, N, F), non-negative except for the polynomial without relu."""
        if self.feature == "elu":
            return x.clamp(max=0).exp() + F.relu(x)  # elu(x) + 1; torch 2.14 miscompiles elu's gradient
        if self.feature == "relu":
            return F.relu(x)
        if self.feature == "polynomial_relu":
            x = F.relu(x)
        x = x / self.shrink
        if self.feature == "taylor":
            squares = monomial_features(x, self.index, self.factor) * 2**-0.5  # their products are s^2 / 2
            return torch.cat([torch.ones_like(x[..., :1]), x, squares], dim=-1)
        if self.constant:
            # One more channel sqrt(c) adds c to the product of two vectors.
            x = torch.cat([torch.full_like(x[..., :1], math.sqrt(self.constant)), x], dim=-1)  # (B, H, N, K + 1)
        return monomial_features(x, self.index, self.factor)


class SoftmaxPair(nn.Module):
    """Features of Hedgehog: softmax(W x) and softmax(-W x), with a map W of each head."""

    roles: ClassVar[dict[str, Role]] = {"weight": "hidden"}

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, width, width))

    def init_weights(self, init: Init) -> None:
        """Set the maps to the identity."""
        init.copy("weight", torch.eye(self.weight.shape[-1]).expand_as(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, N, K) -> (B, H, N, 2 K)."""
        x = x @ self.weight.to(x.dtype).transpose(-1, -2)
        return torch.cat([x.softmax(-1), (-x).softmax(-1)], dim=-1)


class RandomFeatures(nn.Module):
    """Features of Performer: exp(w x - |x|^2 / 2) over the square root of their number, for random directions w.

    Directions are not trained. They are orthogonal in blocks of `width`, each as long as a normal vector. Exponents are
    at most |w|^2 / 2, about K / 2.

    width: channels of x
    shrink: divisor of x
    """

    directions: Tensor

    def __init__(self, width: int, count: int, shrink: float) -> None:
        super().__init__()
        self.shrink = shrink
        self.register_buffer("directions", torch.zeros(count, width))

    def init_weights(self, init: Init) -> None:
        """Draw random directions, the same for all heads."""
        generator = init.generator("directions")
        count, width = self.directions.shape
        blocks = torch.empty(-(-count // width), width, width).normal_(generator=generator)
        length = torch.empty(count, width).normal_(generator=generator).norm(dim=-1, keepdim=True)
        q, r = torch.linalg.qr(blocks)
        q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # otherwise some directions are more likely than others
        init.copy("directions", q.flatten(0, 1)[:count] * length)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, H, N, K) -> (B, H, N, count)."""
        x = x / self.shrink
        exponent = x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
        return exponent.exp() * len(self.directions) ** -0.5


def count_monomials(width: int, degree: int, *, constant: bool) -> int:
    """Return the number of features of `monomials`."""
    return math.comb(width + constant + degree - 1, degree)


def monomials(width: int, degree: int) -> tuple[Tensor, Tensor]:
    """Return the products of `degree` channels of a vector: their indices (F, degree), and a factor each (F,).

    With phi(x)_f = factor_f x[index_f1] ... x[index_fp], phi(x)^T phi(y) = (x^T y)^p.
    """
    index = list(combinations_with_replacement(range(width), degree))
    orders = []
    for channels in index:
        # The square of a factor is the number of orders in which its product occurs in (x^T y)^p.
        repeats = math.prod(math.factorial(times) for times in Counter(channels).values())
        orders.append(math.factorial(degree) / repeats)
    return torch.tensor(index), torch.tensor(orders, dtype=torch.float64).sqrt()


def monomial_features(x: Tensor, index: Tensor, factor: Tensor) -> Tensor:
    """Return phi(x): (..., width) -> (..., F)."""
    product = x.index_select(-1, index[:, 0])
    for column in range(1, index.shape[1]):
        product = product * x.index_select(-1, index[:, column])
    return product * factor.to(x.dtype)


def full_sums(q: Tensor, q_rotated: Tensor, k: Tensor, k_rotated: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return numerator (B, H, N, K) and denominator (B, H, N, 1) for queries that read every key.

    q, k: features before rotation, of the denominator; q_rotated, k_rotated: features of the numerator; v: values
    """
    return q_rotated @ (k_rotated.transpose(-1, -2) @ v), q @ k.sum(2)[..., None]


def masked_sums(
    q: Tensor, q_rotated: Tensor, k: Tensor, k_rotated: Tensor, v: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Return numerator and denominator over the visible keys of each query, with all N M weights computed.

    visible: (B|1, 1, N, M) bool
    """
    numerator = (q_rotated @ k_rotated.transpose(-1, -2) * visible) @ v  # (B, H, N, K)
    return numerator, (q @ k.transpose(-1, -2) * visible).sum(-1, keepdim=True)


def chunked_sums(
    parts: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    base: tuple[Tensor, Tensor] | None,
    segment: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return causal numerator and denominator, `chunk` tokens at a time, and the sums over the whole sequence.

    parts: q, rotated q, k, rotated k (B, H, N, F) each, and v (B, H, N, K)
    base: sums (B, H, F, K) and (B, H, F) over earlier tokens that every token reads
    segment: (B, N), a token reads only its own segment, besides the base
    """
    size = parts[0].shape[2]
    if base is None:
        q, v = parts[0], parts[4]
        base = (q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]), q.new_zeros(*q.shape[:2], q.shape[3]))
    values = torch.zeros_like(base[0])  # S of the current document, up to the chunk
    counts = torch.zeros_like(base[1])  # z of the current document, up to the chunk
    numerators, denominators = [], []
    last: Tensor | None = None
    for start in range(0, size, chunk):
        q, q_rotated, k, k_rotated, v = (part[:, :, start : start + chunk] for part in parts)
        visible = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()[None, None]
        numerator = q_rotated @ values  # earlier chunks of the same document
        denominator = q @ counts[..., None]
        ids = None if segment is None else segment[:, None, start : start + chunk, None]  # (B, 1, n, 1)
        if ids is not None:
            visible = visible & (ids == ids.transpose(-1, -2))
            if last is not None:  # a document that begins in this chunk has no earlier chunks
                numerator = numerator * (ids == last)
                denominator = denominator * (ids == last)
        inner = masked_sums(q, q_rotated, k, k_rotated, v, visible)
        numerators.append(numerator + inner[0] + q_rotated @ base[0])
        denominators.append(denominator + inner[1] + q @ base[1][..., None])
        if ids is not None:
            end = ids[:, :, -1:]  # (B, 1, 1, 1)
            # Only the document at the end of the chunk goes on in the next one.
            if last is not None:
                values = values * (end == last)
                counts = counts * (end == last)[..., 0]
            k = k * (ids == end)
            k_rotated = k_rotated * (ids == end)
            last = end
        values = values + k_rotated.transpose(-1, -2) @ v
        counts = counts + k.sum(2)
    return torch.cat(numerators, 2), torch.cat(denominators, 2), (base[0] + values, base[1] + counts)
