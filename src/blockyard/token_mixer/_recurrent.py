"""The recurrent mixer of `rnn`, `gru` and `lstm`, and the scans and directions that other mixers share with it.

The scans compute h_t = a_t h_(t-1) + b_t over a whole sequence, in O(log N) steps instead of N. Step (a, b) followed by
step (a', b') is the step (a a', a' b + b'), which is associative.

Source: Blelloch 1990, Prefix Sums and Their Applications; the doubling form of Hillis and Steele 1986, Data Parallel
    Algorithms
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blockyard.contracts import Context, Expansion, Memory, Seq, TokenMixer, Traits
from blockyard.ops.linear import residual
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_call, check_context, check_decodes


def scan(a: Tensor, b: Tensor) -> Tensor:
    """Return every state, from a zero state on: a, b (B, N, C) -> (B, N, C). O(N log N) work."""
    reach = 1
    while reach < a.shape[1]:  # (a, b) of a token is the joint step of the `reach` tokens up to it
        b = torch.cat([b[:, :reach], b[:, reach:] + a[:, reach:] * b[:, :-reach]], dim=1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], dim=1)
        reach *= 2
    return b


def blocked_scan(a: Tensor, b: Tensor, block: int = 16) -> Tensor:
    """Return the states of `scan` in O(N) work: token by token in all blocks in parallel, then from block to block."""
    size = a.shape[1]
    missing = -size % block
    a = F.pad(a, (0, 0, 0, missing)).unflatten(1, (-1, block))  # (B, n, block, C)
    b = F.pad(b, (0, 0, 0, missing)).unflatten(1, (-1, block))
    state = torch.zeros_like(b[:, :, 0])  # (B, n, C), of each block from a zero state on
    product = torch.ones_like(a[:, :, 0])  # (B, n, C), decays since the start of the block
    states, products = [], []
    for decay, added in zip(a.unbind(2), b.unbind(2), strict=True):
        state, product = decay * state + added, decay * product  # (B, n, C)
        states.append(state)
        products.append(product)
    before = [torch.zeros_like(b[:, 0, 0])]
    for decay, added in zip(product.unbind(1)[:-1], state.unbind(1)[:-1], strict=True):
        before.append(decay * before[-1] + added)
    # (B, n, block, C): the state before a block, decayed up to each of its tokens, is added to its own states.
    out = torch.stack(states, 2) + torch.stack(products, 2) * torch.stack(before, 1)[:, :, None]
    return out.flatten(1, 2)[:, :size]  # (B, N, C)


def reverse(x: Tensor, valid: Tensor | None) -> Tensor:
    """Return x (B, N, C) with the real tokens of each sequence in reverse order, padding still at the end.

    Applied twice, it returns x.
    """
    if valid is None:
        return x.flip(1)
    count = valid.sum(1, keepdim=True)  # (B, 1)
    index = torch.arange(x.shape[1], device=x.device)[None]  # (1, N)
    order = torch.where(index < count, count - 1 - index, index)  # (B, N)
    return x.gather(1, order[..., None].expand_as(x))


def backwards(seq: Seq) -> Seq:
    """Return the facts of a sequence that is read from its end, as far as a convolution and a state need them."""
    segment = None if seq.segment is None else reverse(seq.segment[..., None], seq.valid)[..., 0]
    return replace(seq, segment=segment)


def causal_states(
    a: Tensor, b: Tensor, seq: Seq, state: Tensor | None = None, *, scan: Callable[[Tensor, Tensor], Tensor] = scan
) -> Tensor:
    """Return every state of h_t = a_t h_(t-1) + b_t: a, b (B, N, C) -> (B, N, C).

    Documents of a packed sequence start from the state after the prefix.

    state: (B, C), the state before the first token; None is zero
    """
    if state is not None:
        # A first token that takes in the decayed state is the same recurrence from zero.
        b = torch.cat([b[:, :1] + a[:, :1] * state[:, None], b[:, 1:]], dim=1)
    if seq.segment is None or seq.num_prefix == 0:
        return scan(*restart(a, b, seq.segment))
    p = seq.num_prefix
    prefix = scan(a[:, :p], b[:, :p])  # (B, prefix, C)
    rest = restart(a[:, p:], b[:, p:], seq.segment[:, p:], prefix[:, -1])
    return torch.cat([prefix, scan(*rest)], dim=1)  # (B, N, C)


def restart(a: Tensor, b: Tensor, segment: Tensor | None, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return a, b (B, N, C) such that a scan starts every document from `state` (B, C), or from zero."""
    if segment is None:
        return a, b
    first = F.pad(segment[:, 1:] != segment[:, :-1], (1, 0), value=True)[..., None]  # (B, N, 1)
    if state is not None:
        b = torch.where(first, b + a * state[:, None], b)
    return a.masked_fill(first, 0.0), b


class Recurrent(TokenMixer):
    """A cell over the tokens in order, then a projection. In a bidirectional model half of the state runs backwards.

    Each document of a packed sequence starts from the state after the prefix, as it would in a sequence of its own.

    cell: the constructor of the cell of a direction

    Options:
        expansion: state channels, both directions together, as a multiple of model.dim
        bias: use biases in the cell and in the projection
    """

    cell: Callable[..., nn.RNNBase]
    traits = Traits(causal=True, padding=True, packing=True, axes=frozenset({1, 2}))
    hidden_multiple: ClassVar[int] = 2  # one for each direction

    def __init__(self, ctx: Context, *, expansion: Expansion = 1.0, bias: bool = True) -> None:
        super().__init__()
        check_context(self, ctx)
        self.causal = ctx.causal
        directions = 1 if ctx.causal else 2
        width = max(1, round(expansion * ctx.dim / directions))
        self.ahead = self.cell(ctx.dim, width, bias=bias, batch_first=True)
        self.back = None if ctx.causal else self.cell(ctx.dim, width, bias=bias, batch_first=True)
        # oneDNN has an LSTM in bf16 only for CPUs with bf16 of their own, and torch raises elsewhere.
        self._in_float32 = isinstance(self.ahead, nn.LSTM) and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self.proj_out = residual(ctx, width * directions, ctx.dim, bias=bias)

    def forward(self, x: Tensor, seq: Seq, cache: StateCache | None = None, memory: Memory | None = None) -> Tensor:
        """x (B, N, D) -> (B, N, D)."""
        check_call(self, self.traits, seq, cache, memory)
        if cache is not None:
            states = self._continue(x, cache)
        elif seq.segment is not None:
            documents = split_documents(x, seq)
            states = documents.merge(self._states(documents.x, documents.valid))
        else:
            states = self._states(x, seq.valid)
        return self.proj_out(states)  # (B, N, D)

    def train(self, mode: bool = True) -> Recurrent:
        """Set the mode of all but the cells, which stay in training mode."""
        super().train(mode)
        # cuDNN computes gradients of a cell in training mode only. Without dropout both modes give the same.
        for cell in (self.ahead, self.back):
            if cell is not None:
                cell.train()
        return self

    def init_cache(self, batch_size: int) -> StateCache:
        """Return an empty state. Raises ValueError for a bidirectional model, whose outputs depend on the future."""
        check_decodes(self.causal)
        return StateCache()

    def _states(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Return the state at every token, forwards and, in a bidirectional model, backwards: (B, N, E)."""
        forwards, _ = self._run(self.ahead, x)
        if self.back is None:
            return forwards
        backwards, _ = self._run(self.back, reverse(x, valid))
        return torch.cat([forwards, reverse(backwards, valid)], dim=-1)  # (B, N, E)

    def _run(self, cell: nn.RNNBase, x: Tensor, start: Any = None) -> tuple[Tensor, Any]:
        """Return the states (B, N, E) and the last one, in float32 on a CPU without an LSTM in half precision."""
        if self._in_float32 and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return cell(x.float(), start)
        return cell(x, start)

    def _continue(self, x: Tensor, cache: StateCache) -> Tensor:
        """Return the state at every token behind the tokens of the cache: (B, N, E)."""
        start: Any = None
        if cache.parts is not None:
            # torch keeps the batch second, (1, B, E). An LSTM has a pair of states, other cells a bare tensor.
            start = tuple(part.transpose(0, 1).contiguous() for part in cache.parts)
            start = start[0] if len(start) == 1 else start
        states, end = self._run(self.ahead, x, start)
        parts = end if isinstance(end, tuple) else (end,)
        cache.store(*(part.transpose(0, 1) for part in parts))
        return states


@dataclass(frozen=True)
class Documents:
    """Packed sequences split into documents, for mixers that can only start at the start of a sequence.

    A padded sequence per document, each with the prefix in front. The first B hold the prefix alone.

    x: (R, M, D), zero where padded
    valid: (R, M)
    """

    x: Tensor
    valid: Tensor
    num_prefix: int
    document: Tensor  # (B, N - p), the row of `x` that holds each token
    column: Tensor  # (B, N - p), its column in that row

    def merge(self, x: Tensor) -> Tensor:
        """Return outputs x (R, M, E) of the documents in the layout of the packed batch: (B, N, E)."""
        batch = len(self.document)
        return torch.cat([x[:batch, : self.num_prefix], x[self.document, self.column]], dim=1)  # (B, N, E)


def split_documents(x: Tensor, seq: Seq) -> Documents:
    """Return the documents of x (B, N, D): runs of equal `seq.segment`.

    Their number and length depend on the data, so a GPU has to synchronise with the host.
    """
    assert seq.segment is not None
    p = seq.num_prefix
    segment = seq.segment[:, p:]  # (B, N - p)
    batch, size = segment.shape
    valid = torch.ones_like(segment, dtype=torch.bool) if seq.valid is None else seq.valid[:, p:]
    starts = torch.ones_like(valid)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    document = batch + starts.flatten().cumsum(0).view_as(segment) - 1  # (B, N - p)
    index = torch.arange(size, device=x.device).expand(batch, -1)  # (B, N - p)
    offset = index - torch.where(starts, index, 0).cummax(1).values  # (B, N - p), from the document's first token
    count = batch + int(starts.sum())
    longest = p + 1 + int(offset.max())
    padded = x.new_zeros(count, longest, x.shape[2])
    padded_valid = torch.zeros(count, longest, dtype=torch.bool, device=x.device)
    if p:
        owner = torch.arange(batch, device=x.device).repeat_interleave(starts.sum(1))  # (R - B,)
        padded[:, :p] = torch.cat([x[:, :p], x[owner, :p]])
        padded_valid[:, :p] = True
    padded[document[valid], p + offset[valid]] = x[:, p:][valid]
    padded_valid[document[valid], p + offset[valid]] = True
    return Documents(padded, padded_valid, p, document, p + offset)
