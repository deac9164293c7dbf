"""Shared by the figures of attention: pages of layers and heads, and the ends of colour scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.inspect._canvas import split_pages
from blockyard.inspect.attention_weights import LayerAttention, query_weights
from blockyard.inspect.panels import Panel

_ROWS, _COLUMNS = 6, 8  # panels of a page
_MANY = 2000  # entries, from which on a quantile ends the colour scale


def head_pages(layers: list[LayerAttention]) -> Iterator[tuple[Sequence[LayerAttention], Sequence[int]]]:
    """Yield the layers and heads of each page; heads as indices of `LayerAttention.heads`."""
    for page_layers in split_pages(layers, _ROWS):
        for heads in split_pages(range(max(len(layer.heads) for layer in page_layers)), _COLUMNS):
            yield page_layers, heads


def query_rows(
    layers: list[LayerAttention], query: str | int | None, panel: Callable[[LayerAttention, Tensor, int, float], Panel]
) -> Iterator[tuple[list[tuple[LayerAttention, list[Panel | None]]], int]]:
    """Yield the rows of each page, a layer with a panel for each head, and the number of heads.

    panel: draws the weights (M,) of one query in a layer, for one of its heads, on a scale that has this end
    """
    for page_layers, heads in head_pages(layers):
        tables = [query_weights(layer, query)[0] for layer in page_layers]
        end = scale_end([table[:, layer.prefix :] for table, layer in zip(tables, page_layers, strict=True)])
        rows = []
        for layer, table in zip(page_layers, tables, strict=True):
            panels: list[Panel | None] = []
            for head in heads:
                has_head = head < len(layer.heads)
                panels.append(panel(layer, table[head], head, end) if has_head else None)
            rows.append((layer, panels))
        yield rows, len(heads)


def prefix_share(layer: LayerAttention, weights: Tensor) -> str:
    """Return the share of the weights (M,) that lies on class and register tokens, for a title; empty without any."""
    if not layer.prefix:
        return ""
    return f", {float(weights[: layer.prefix].sum()):.0%} on prefix"


def scale_end(tables: list[Any]) -> float:
    """Return the upper end of a colour scale that a few extreme entries do not stretch."""
    values = torch.cat([table.flatten() for table in tables]).abs()
    if values.numel() < _MANY:
        return max(float(values.max()), 1e-6)
    # By numpy: torch takes quantiles of 16 million numbers at most.
    return max(float(np.quantile(values.numpy(), 0.998)), 1e-6)
