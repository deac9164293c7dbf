"""Attention weights of chosen layers, computed again from the queries and keys of a forward pass.

Fused kernels never make the weights. Inside `listen`, `attend` keeps its arguments, and
`reference.weights` computes the weights in float32, with the same scores, bias and masks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Seq
from blockyard.ops import kernel, mask, reference
from blockyard.ops.mask import Visibility
from blockyard.ops.observed import observed


@dataclass
class Seen:
    """One call of `attend`: the path of its layer in the model, and its arguments."""

    layer: str
    q: Tensor
    k: Tensor
    v: Tensor
    seq: Seq
    k_seq: Seq
    visibility: Visibility
    scale: float | None
    rule: Callable[..., Tensor] = reference.weights  # computes weights from these arguments
    sink: bool = False  # whether a sink takes the rest of a query's weights to one

    @property
    def causal(self) -> bool:
        """Return whether a query sees earlier keys only."""
        return self.visibility.causal

    def weights(self) -> Tensor:
        """Return the weights (B, H, N, M) in float32.

        Softmax weights sum to 1 per query, with a sink to less than 1, and to 0 for a query that sees nothing.
        """
        with torch.no_grad():  # a bias has weights of its own
            return self.rule(self.q.float(), self.k.float(), self.seq, self.k_seq, self.visibility, self.scale)

    @property
    def softmax_options(self) -> dict[str, Any] | None:
        """The options of `reference.weights` where the weights are its softmax; None for other weights."""
        if self.rule is reference.weights:
            return {}
        if isinstance(self.rule, partial) and self.rule.func is reference.weights:
            return self.rule.keywords
        return None

    def scores(self) -> Tensor | None:
        """Return the scores before the softmax in float32, -inf at keys that a query does not see: (B, H, N, M).

        None for weights that are no softmax.
        """
        options = self.softmax_options
        if options is None:
            return None
        q, k = self.q.float(), self.k.float()
        with torch.no_grad():
            return reference.scores(q, k, self.seq, self.k_seq, self.visibility, self.scale, **options)

    def entropy(self) -> tuple[Tensor, Tensor]:
        """Return the entropy of each query's weights, in nats and as a share of its maximum: 2 x (B, H, N).

        The share is NaN for a query that sees a single key. Both are NaN for weights that do not sum to one.
        """
        weights = self.weights()
        visible = self.visible()
        if self.sink:
            # A sink takes the rest of the weight, as one more key.
            weights = torch.cat([weights, 1 - weights.sum(-1, keepdim=True)], dim=-1).clamp_min(0.0)
            visible = F.pad(visible, (0, 1), value=True)
        maximum = visible.sum(-1).float().log()  # (B, H, N)
        normalized = ((weights >= 0).all(-1)) & ((weights.sum(-1) - 1).abs() < 1e-3)  # (B, H, N)
        nats = torch.special.entr(weights).sum(-1).masked_fill(~normalized, float("nan"))  # (B, H, N)
        return nats, torch.where(maximum > 0, nats / maximum, float("nan"))

    def visible(self) -> Tensor:
        """Return whether each query may see each key: (B, H, N, M) bool."""
        shape = (*self.q.shape[:3], self.k.shape[2])
        sees = mask.table(self.seq, self.k_seq, self.visibility)
        if sees is None:
            return torch.ones(shape, dtype=torch.bool, device=self.q.device)
        return sees.expand(shape)


class _MapState:
    """The calls kept so far; None outside `listen`."""

    seen: list[Seen] | None = None


def listening() -> bool:
    """Return whether calls are kept."""
    return _MapState.seen is not None


def note(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seq: Seq,
    k_seq: Seq,
    visibility: Visibility,
    scale: float | None,
    rule: Callable[..., Tensor] = reference.weights,
    *,
    sink: bool = False,
) -> None:
    """Keep the arguments of a call of `attend`, or of another function with a `rule` for its weights."""
    if _MapState.seen is not None:
        _MapState.seen.append(Seen(kernel.layer(), q, k, v, seq, k_seq, visibility, scale, rule, sink))


@contextmanager
def paused() -> Iterator[None]:
    """Keep no calls inside this context, for a mixer that notes several as one."""
    before, _MapState.seen = _MapState.seen, None
    try:
        yield
    finally:
        _MapState.seen = before


@contextmanager
def listen(model: nn.Module) -> Iterator[list[Seen]]:
    """Collect the calls of `attend` while `model` runs inside this context, in order."""
    _MapState.seen = []
    try:
        with kernel.named_layers(model):
            yield _MapState.seen
    finally:
        _MapState.seen = None


def attention(model: nn.Module, *inputs: Any, **named: Any) -> list[Seen]:
    """Return the attention calls of one forward pass in evaluation mode, without gradients.

    A compiled model runs eagerly here. The model is left in the mode it was in.
    """
    with listen(model) as seen, observed(model):
        model(*inputs, **named)
    return seen


def block_number(path: str) -> int | None:
    """Return the number of the block in a layer's path, such as 3 of blocks.3.token_mixer; None without one."""
    match = re.search(r"\.(\d+)\.", f".{path}.")
    return int(match.group(1)) if match else None


def smaller(weights: Tensor, side: int) -> Tensor:
    """Return weights (..., N, M) as a map of at most `side` rows and columns.

    Neighbours are merged, queries by their mean and keys by their sum, so that the sum of each row stays.
    """
    rows = parts(weights.shape[-2], side, weights)  # (side, N)
    columns = parts(weights.shape[-1], side, weights)  # (side, M)
    means = rows / rows.sum(-1, keepdim=True)  # (side, N)
    return means @ weights @ columns.T  # (..., side, side)


def parts(count: int, side: int, like: Tensor) -> Tensor:
    """Return a (side, count) matrix of ones and zeros that assigns `count` items to `side` nearly equal parts."""
    side = min(side, count)
    part = torch.arange(count, device=like.device) * side // count  # (count,)
    return (part[None] == torch.arange(side, device=like.device)[:, None]).to(like.dtype)
