"""Attention weights of chosen layers, worked out again from the queries and keys that a forward pass used.

Fused kernels never make the weights. While somebody listens, `attend` hands over what it was called
with, and `reference.weights` works them out in float32: the same scores, bias and masks, no second code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Seq
from blockyard.ops import kernel, mask, reference


@dataclass
class Seen:
    """One call of `attend`: its layer's path in the model, and its arguments."""

    layer: str
    q: Tensor
    k: Tensor
    v: Tensor
    seq: Seq
    k_seq: Seq
    causal: bool
    scale: float | None
    window: int | None = None
    strict: bool = False
    rule: Callable[..., Tensor] = reference.weights  # what makes weights of these arguments

    def weights(self) -> Tensor:
        """The weights (B, H, N, M) in float32: each row sums to one, or to nothing where a query sees nothing."""
        q, k = self.q.float(), self.k.float()
        return self.rule(q, k, self.seq, self.k_seq, self.causal, self.scale, self.window, self.strict)

    def visible(self) -> Tensor:
        """Which keys each query may see: (B, H, N, M) bool."""
        shape = (*self.q.shape[:3], self.k.shape[2])
        see = mask.table(self.seq, self.k_seq, self.causal, self.window, self.strict)
        if see is None:
            return torch.ones(shape, dtype=torch.bool, device=self.q.device)
        return see.expand(shape)


class _State:
    seen: list[Seen] | None = None  # None while nobody listens


def listening() -> bool:
    """Whether somebody listens."""
    return _State.seen is not None


def note(*call: Any, rule: Callable[..., Tensor] = reference.weights) -> None:
    """Called by `attend` and its like for each call while somebody listens, with the fields of `Seen` from `q` on."""
    if _State.seen is not None:
        _State.seen.append(Seen(kernel.layer(), *call, rule=rule))


@contextmanager
def listen(model: nn.Module) -> Iterator[list[Seen]]:
    """Collect the calls of `attend` while `model` runs in this block, in order."""
    _State.seen = []
    try:
        with kernel.named_layers(model):
            yield _State.seen
    finally:
        _State.seen = None


def attention(model: nn.Module, *inputs: Any, **named: Any) -> list[Seen]:
    """What every attention layer saw in one forward pass in evaluation mode, without gradients.

    A compiled model runs eagerly here. The model is left in the mode it was in, and nothing is drawn.
    """
    training = model.training
    model.eval()
    try:
        with listen(model) as seen, torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model(*inputs, **named)
        return seen
    finally:
        model.train(training)


def block_number(path: str) -> int | None:
    """The block's number in a layer's path, such as blocks.3.token_mixer."""
    found = re.search(r"\.(\d+)\.", f".{path}.")
    return int(found.group(1)) if found else None


def smaller(weights: Tensor, side: int) -> Tensor:
    """Weights (..., N, M) as a map of at most `side` rows and columns.

    Neighbours are put together: queries by their mean, keys by their sum, so that a row's sum stays.
    """
    rows = parts(weights.shape[-2], side, weights)  # (side, N)
    columns = parts(weights.shape[-1], side, weights)  # (side, M)
    means = rows / rows.sum(-1, keepdim=True)  # (side, N)
    return means @ weights @ columns.T  # (..., side, side)


def parts(count: int, side: int, like: Tensor) -> Tensor:
    """Which of `side` parts, as even as can be, each of `count` things belongs to: (side, count), ones and zeros."""
    side = min(side, count)
    part = torch.arange(count, device=like.device) * side // count  # (count,)
    return (part[None] == torch.arange(side, device=like.device)[:, None]).to(like.dtype)
