"""Attention weights of each layer and head, and how spread they are.

Source: Vaswani et al. 2017 (arXiv 1706.03762), figures 3 to 5; Voita et al. 2019 (arXiv 1905.09418) and
    Zhai et al. 2023 (arXiv 2303.06296), for the entropy of a head
Equation: H_i = - sum_j w_ij ln w_ij, in nats; as a share, H_i / ln(number of keys that query i may see)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blockyard.inspect.samples import Sample, chosen, chosen_heads, labels, title
from blockyard.ops import maps


@dataclass
class LayerAttention:
    """One layer's heads: `weights` of the first sample, the rest averaged over queries and samples.

    weights: (H, N, M), rows of real tokens only; heads: their numbers
    entropy: (H,) nats; share: (H,) of the most a query could have, NaN where none sees two keys
    prefix: class and register tokens, and trained keys, among the keys; query_prefix: among the queries
    grid: the keys' layout after them
    """

    path: str
    heads: list[int]
    weights: Tensor
    entropy: Tensor
    share: Tensor
    causal: bool
    cross: bool
    prefix: int
    query_prefix: int
    grid: tuple[int, ...] | None
    queries: list[str]
    keys: list[str]

    @property
    def name(self) -> str:
        """The layer in words."""
        return title(self.path)


def attention(
    model: nn.Module,
    samples: list[Sample],
    *,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
) -> list[LayerAttention]:
    """The attention layers of `model`, in order of call; empty where none attends.

    Raises UserError for layers and heads that are not there.
    """
    found: list[LayerAttention] = []
    spread: list[list[tuple[Tensor, Tensor]]] = []
    for number, sample in enumerate(samples):
        seen = maps.attention(model, **sample.batch.arguments())
        wanted = set(chosen([one.layer for one in seen], layers)) if seen else set()
        seen = [one for one in seen if one.layer in wanted]
        if number == 0:
            found = [_first(model, sample, one, heads) for one in seen]
            spread = [[] for _ in seen]
        for layer, one, values in zip(found, seen, spread, strict=True):
            values.append(entropy(one, layer.heads))
    for layer, values in zip(found, spread, strict=True):
        layer.entropy = torch.cat([nats for nats, _ in values], dim=1).nanmean(1)  # (H,)
        layer.share = torch.cat([share for _, share in values], dim=1).nanmean(1)  # (H,)
    return found


def entropy(seen: maps.Seen, heads: list[int]) -> tuple[Tensor, Tensor]:
    """Entropy of each real query's weights, in nats and as a share of the most it could be: 2 x (H, N).

    A query that sees a single key has no share, and weights that are no shares of one have no entropy: NaN.
    """
    weights = _real(seen, seen.weights())[heads]  # (H, N, M)
    most = _real(seen, seen.visible().expand_as(seen.weights()))[heads].sum(-1).float().log()  # (H, N)
    shares = ((weights >= 0).all(-1)) & ((weights.sum(-1) - 1).abs() < 1e-3)  # (H, N)
    nats = torch.special.entr(weights).sum(-1).masked_fill(~shares, float("nan"))  # (H, N)
    return nats, torch.where(most > 0, nats / most, float("nan"))


def _first(model: nn.Module, sample: Sample, seen: maps.Seen, heads: tuple[int, ...] | None) -> LayerAttention:
    picked = chosen_heads(seen.q.shape[1], heads)
    weights = _real(seen, seen.weights())[picked]  # (H, N, M)
    nothing = torch.zeros(len(picked))
    slots = _slots(seen)
    cross = seen.k_seq is not seen.seq and not slots
    own = labels(sample.own(seen.layer), model, seen.seq)
    other = labels(sample.other, model, seen.k_seq) if cross else [*(f"slot {i}" for i in range(slots)), *own]
    queries, keys = (names[:count] for names, count in zip((own, other), weights.shape[1:], strict=True))
    return LayerAttention(
        path=seen.layer,
        heads=picked,
        weights=weights,
        entropy=nothing,
        share=nothing,
        causal=seen.causal,
        cross=cross,
        prefix=seen.k_seq.num_prefix,
        query_prefix=seen.seq.num_prefix,
        grid=seen.seq.grid if slots else seen.k_seq.grid,
        queries=queries,
        keys=keys,
    )


def _slots(seen: maps.Seen) -> int:
    """Trained keys in front of the row's own, which belong to no token."""
    more = len(seen.k_seq) - len(seen.seq)
    return more if more > 0 and seen.k_seq.num_prefix - seen.seq.num_prefix == more else 0


def _real(seen: maps.Seen, table: Tensor) -> Tensor:
    """The first row of a batch without its padding: (B, H, N, M) -> (H, N', M')."""
    rows, columns = ((len(s) if s.valid is None else int(s.valid[0].sum())) for s in (seen.seq, seen.k_seq))
    return table[0, :, :rows, :columns]


def chosen_query(layer: LayerAttention, query: str | int | None) -> str | int:
    """The query whose attention is shown, and for None the one that says most: see `Options.query`."""
    if query is not None:
        return query
    if layer.queries and layer.queries[0] == "class":
        return "class"
    return "last" if layer.causal else "mean"


def one_query(layer: LayerAttention, query: str | int | None) -> tuple[Tensor, str]:
    """The weights (H, M) of one query, or of their mean, and its name.

    Raises ValueError for a query that the row does not have.
    """
    query = chosen_query(layer, query)
    if query == "mean":
        return layer.weights.mean(1), "the mean over all queries"
    if query == "class":
        if not layer.queries or layer.queries[0] != "class":
            raise ValueError("query=class: the model has no class token; take mean, last or a number")
        place = 0
    else:
        place = len(layer.queries) - 1 if query == "last" else layer.query_prefix + int(query)
    if place >= len(layer.queries):
        raise ValueError(f"query={query}: the row has {len(layer.queries) - layer.query_prefix} tokens, from 0")
    name = layer.queries[place]
    if name == "class":
        return layer.weights[:, place], "the class token"
    return layer.weights[:, place], f"token {place - layer.query_prefix} ({name})"
