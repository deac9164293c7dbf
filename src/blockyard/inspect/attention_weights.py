"""The attention weights of each layer and head, and their entropy.

Source: Vaswani et al. 2017 (arXiv 1706.03762), figures 3 to 5; Voita et al. 2019 (arXiv 1905.09418) and
    Zhai et al. 2023 (arXiv 2303.06296), for the entropy of a head
Equation: H_i = - sum_j w_ij ln w_ij, in nats; as a share, H_i / ln(number of keys that query i may see). A sink takes
    the weight that the keys of a query lack to one, and counts as one more key

If a question asks for a part of a source, also the share of the attention to the source that lies on this part, beside
its share of the patches. `evaluate/inside.py` has the equation, and measures it over a split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from blockyard.evaluate.inside import region_patches, region_share, source_keys, trained_slots
from blockyard.inspect.labels import InLayer, real_tokens, token_labels
from blockyard.inspect.samples import Sample, select_heads, select_layers
from blockyard.ops import maps


@dataclass
class LayerAttention(InLayer):
    """The selected heads of one layer: `weights` of the first sample, entropies averaged over queries and samples.

    weights: (H, N, M), without padding; heads: their indices
    entropy: (H,) nats; share: (H,) of the maximum entropy, NaN where no query sees two keys
    sink: (H,) the share of the weight on a sink, averaged over the queries; None without a sink
    prefix: number of class, register and trained slot tokens among the keys; query_prefix: among the queries
    grid: the layout of the keys after the prefix
    source: the first key that is a patch of the sample's source, and the number of these keys; None without any.
        source_grid: their layout
    region: (H,) the share of a query's attention to the source that lies on the part that is asked for, averaged over
        the samples that ask for a part; None if none does. region_patches: that part's share of the patches
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
    sink: Tensor | None = None
    source: tuple[int, int] | None = None
    source_grid: tuple[int, ...] = ()
    region: Tensor | None = None
    region_patches: float = 0.0


def attention_layers(
    model: nn.Module,
    samples: list[Sample],
    *,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    query: str | int | None = None,
) -> list[LayerAttention]:
    """Return the attention layers of `model` in order of call; empty if no layer attends.

    query: the query of the attention to the part that is asked for; see `Options.query`

    Raises UserError for layers and heads that do not exist.
    """
    results: list[LayerAttention] = []
    entropies: list[list[tuple[Tensor, Tensor]]] = []
    region: list[list[tuple[Tensor, float]]] = []
    for number, sample in enumerate(samples):
        calls = maps.attention(model, sample.batch)
        if calls:
            paths = select_layers([call.layer for call in calls], layers)
            calls = [call for call in calls if call.layer in paths]
        if number == 0:
            results = [_layer(model, sample, call, heads) for call in calls]
            entropies = [[] for _ in calls]
            region = [[] for _ in calls]
        for layer, call, values, shares in zip(results, calls, entropies, region, strict=True):
            values.append(_head_entropy(call, layer.heads))
            if sample.region is not None and layer.source is not None:
                of_sample = layer if number == 0 else _layer(model, sample, call, heads)
                start, count = layer.source
                on_source = query_weights(of_sample, query)[0][:, start : start + count]
                patches = region_patches(sample.region[None], layer.source_grid)  # (1, M)
                shares.append((region_share(on_source[None], patches)[0], float(patches.float().mean())))
    for layer, values in zip(results, entropies, strict=True):
        layer.entropy = torch.cat([nats for nats, _ in values], dim=1).nanmean(1)  # (H,)
        layer.share = torch.cat([share for _, share in values], dim=1).nanmean(1)  # (H,)
    for layer, shares in zip(results, region, strict=True):
        if shares:
            layer.region = torch.stack([share for share, _ in shares]).mean(0)  # (H,)
            layer.region_patches = sum(of_patches for _, of_patches in shares) / len(shares)
    return results


def _head_entropy(call: maps.Seen, heads: list[int]) -> tuple[Tensor, Tensor]:
    """Return `Seen.entropy` of the first sequence of a batch, its padding removed: 2 x (H, N)."""
    real = real_tokens(call.seq)
    nats, share = call.entropy()
    return nats[0, heads, :real], share[0, heads, :real]


def _layer(model: nn.Module, sample: Sample, call: maps.Seen, heads: tuple[int, ...] | None) -> LayerAttention:
    """Return one layer, its entropies still zero."""
    selected = select_heads(call.q.shape[1], heads)
    weights = _without_padding(call, call.weights())[selected]  # (H, N, M)
    zeros = torch.zeros(len(selected))
    slots = trained_slots(call)
    patch_keys = source_keys(model, call)
    cross = call.k_seq is not call.seq and not slots
    queries = token_labels(sample.text_at(call.layer), model, call.seq)
    if cross:
        keys = token_labels(sample.memory_text, model, call.k_seq)
    else:
        keys = [f"slot {number}" for number in range(slots)] + queries
    source = None
    source_grid: tuple[int, ...] = ()
    if patch_keys is not None:
        first, count, source_grid = patch_keys
        source = (first, count)
    return LayerAttention(
        path=call.layer,
        heads=selected,
        weights=weights,
        entropy=zeros,
        share=zeros,
        causal=call.causal,
        cross=cross,
        prefix=call.k_seq.num_prefix,
        query_prefix=call.seq.num_prefix,
        grid=call.seq.grid if slots else call.k_seq.grid,
        sink=1 - weights.sum(-1).mean(-1) if call.sink else None,
        queries=queries[: weights.shape[1]],
        keys=keys[: weights.shape[2]],
        source=source,
        source_grid=source_grid,
    )


def _without_padding(call: maps.Seen, table: Tensor) -> Tensor:
    """Return the table of the first sequence of a batch, padding removed: (B, H, N, M) -> (H, N', M')."""
    return table[0, :, : real_tokens(call.seq), : real_tokens(call.k_seq)]


def resolve_query(layer: LayerAttention, query: str | int | None) -> str | int:
    """Return `query`, or the layer's default for None: see `Options.query`."""
    if query is not None:
        return query
    if layer.queries and layer.queries[0] == "class":
        return "class"
    if layer.causal:
        return "last"
    return "mean"


def query_weights(layer: LayerAttention, query: str | int | None) -> tuple[Tensor, str]:
    """Return the weights (H, M) of one query, or the mean over all, and the name of the query.

    Raises ValueError for a query that the sequence does not have.
    """
    query = resolve_query(layer, query)
    if query == "mean":
        return layer.weights.mean(1), "the mean over all queries"
    if query == "class":
        if not layer.queries or layer.queries[0] != "class":
            raise ValueError("query=class: the model has no class token; use mean, last or an index")
        index = 0
    else:
        index = len(layer.queries) - 1
        if query != "last":
            index = layer.query_prefix + int(query)
    if index >= len(layer.queries):
        count = len(layer.queries) - layer.query_prefix
        raise ValueError(f"query={query} is out of range: the sequence has {count} tokens, counted from 0")
    label = layer.queries[index]
    if label == "class":
        return layer.weights[:, index], "the class token"
    return layer.weights[:, index], f"token {index - layer.query_prefix} ({label})"
