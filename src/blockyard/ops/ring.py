"""Ring attention: each of several processes holds a part of every sequence, and keys and values travel.

Source: Liu et al. 2023, Ring Attention with Blockwise Transformers for Near-Infinite Context (arXiv 2310.01889); the
    balanced cut of Brandon et al. 2023, Striped Attention (arXiv 2311.09431), section 3, in the form of two chunks for
    each process that Llama 3 has (Dubey et al. 2024, arXiv 2407.21783, section 3.3.2)
Reference: attention over the whole sequence in one process; torch.distributed.tensor.experimental.context_parallel,
    without a strategy for CPUs
Equation: with the output O_j and the logarithm L_j of the sums over the keys of process j:
    L = log sum_j e^L_j, O = sum_j e^(L_j - L) O_j; the backward pass reads O and L, as in `ops.online`
Cost: each process computes N^2 / P pairs, holds N / P tokens, and sends the keys and values of N / P tokens P - 1 times
    forward; backward the same, and their gradients P times

    2 processes, causal     chunk 1  process 0   *          A token of the last chunk reads four times as many keys as
                            chunk 2  process 1   * *        one of the first. With a chunk from the front and one from
                            chunk 3  process 1   * * *      the back, all processes have equal work.
                            chunk 4  process 0   * * * *
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from blockyard.contracts import Batch, Position, Seq
from blockyard.errors import UserError
from blockyard.ops import online
from blockyard.ops.autocast import full_precision
from blockyard.ops.mask import Visibility, scheme
from blockyard.ops.shaping import PLAIN, Shaping

MEMO_KEY = "ring"  # key of the memo of a sequence that is cut


@dataclass(frozen=True)
class Ring:
    """The processes that share every sequence.

    group: of torch.distributed, for the ring alone, so that no other communication interferes
    """

    rank: int
    world: int
    group: Any

    def tokens(self, length: int, rank: int) -> Tensor:
        """Return the tokens of a process, (n,) int64 and increasing: one chunk of 2 `world` from either end.

        Raises ValueError if a process would get none in a chunk.
        """
        chunks = 2 * self.world
        if length < chunks:
            raise ValueError(f"{length} tokens cannot be cut among {self.world} processes; use at least {chunks}")
        bounds = [length * chunk // chunks for chunk in range(chunks + 1)]
        back = chunks - 1 - rank
        return torch.cat(
            [
                torch.arange(bounds[rank], bounds[rank + 1]),
                torch.arange(bounds[back], bounds[back + 1]),
            ]
        )

    def cut(self, x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
        """Return this process's tokens, x (B, N, D) -> (B, n, D), and their facts, with the facts of all processes.

        Raises ValueError for sequences with padding, segments, prefix tokens or facts of pairs.
        """
        facts = (seq.valid, seq.segment, seq.pairs, seq.shown)
        if seq.num_prefix or any(fact is not None for fact in facts):
            raise ValueError("only whole sequences of one length, without a prefix, are cut among processes")
        tokens = [self.tokens(len(seq), rank).to(x.device) for rank in range(self.world)]
        parts = [_part(seq, indices) for indices in tokens]
        part = parts[self.rank]
        part.memo[MEMO_KEY] = (self, parts)
        return x[:, tokens[self.rank]], part

    def targets(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the targets (B, n) of this process's tokens out of (B, N), and the weight of their mean loss.

        The mean over processes of weighted losses is the mean loss over all targets that count.
        """
        tokens = self.tokens(target.shape[1], self.rank).to(target.device)
        part = target[:, tokens]  # (B, n)
        share = Batch.counted(part).sum() / Batch.counted(target).sum().clamp_min(1)
        return part, share * self.world

    def passed_on(self, tensors: list[Tensor], sizes: list[torch.Size]) -> tuple[list[Tensor], list[Any]]:
        """Send tensors to the next process. Return the previous process's tensors, of these sizes, and requests.

        The received tensors are complete once `wait` of each request was called.
        """
        received = [tensor.new_empty(size) for tensor, size in zip(tensors, sizes, strict=True)]
        # torch names peers by their ranks among all processes, not in the group.
        following = dist.get_global_rank(self.group, (self.rank + 1) % self.world)
        previous = dist.get_global_rank(self.group, (self.rank - 1) % self.world)
        sends = [dist.P2POp(dist.isend, tensor.contiguous(), following, self.group) for tensor in tensors]
        receives = [dist.P2POp(dist.irecv, tensor, previous, self.group) for tensor in received]
        return received, dist.batch_isend_irecv([*sends, *receives])


def under(seq: Seq, position: Position) -> Seq:
    """Return the same tokens under another position scheme, with a memo of its own: masks may depend on the scheme."""
    if MEMO_KEY not in seq.memo:
        return replace(seq, position=position, memo={})
    ring, parts = seq.memo[MEMO_KEY]
    parts = [replace(part, position=position, memo={}) for part in parts]
    parts[ring.rank].memo[MEMO_KEY] = (ring, parts)
    return parts[ring.rank]


class _RingState:
    """The ring in force."""

    ring: Ring | None = None


@contextmanager
def sharing(ring: Ring | None) -> Iterator[None]:
    """Let models cut their sequences among the processes of a ring inside this context; None changes nothing."""
    before = _RingState.ring
    _RingState.ring = ring
    try:
        yield
    finally:
        _RingState.ring = before


def shared(x: Tensor, seq: Seq) -> tuple[Tensor, Seq]:
    """Return this process's part of a stream x (B, N, D), and its facts; the whole outside of `sharing`."""
    if _RingState.ring is None:
        return (x, seq)
    return _RingState.ring.cut(x, seq)


def _part(seq: Seq, tokens: Tensor) -> Seq:
    """Return the facts of some tokens of a sequence; they keep their indices and coordinates in the whole."""
    features = None if seq.features is None else seq.features[:, tokens]
    ids = None if seq.ids is None else seq.ids[:, tokens]
    part = replace(seq, index=seq.index[tokens], coords=seq.coords[:, tokens], features=features, ids=ids)
    return replace(part, grid=None, memo={})


def check(dropout: float, *, whole: bool) -> None:
    """Raise UserError for dropout, and ValueError unless the sequence attends to itself (`whole`)."""
    if dropout:
        raise UserError(f"trainer.strategy=context: {online.refusal(dropout, False)}; use token_mixer.dropout=0")
    if not whole:
        raise ValueError("a sequence that is cut among processes attends to itself and to no other keys")


def ring_attention(
    q: Tensor, k: Tensor, v: Tensor, seq: Seq, visibility: Visibility, scale: float, shaping: Shaping = PLAIN
) -> Tensor:
    """Return attention for the tokens of this process, as `ops.attend`: (B, H, n, values' width). All processes call.

    q (B, H, n, K), k (B, H', n, K), v (B, H', n, any width) of the tokens of `seq`, from `Ring.cut`.
    Sums are in float32 at least. There is no second derivative.
    """
    ring, parts = seq.memo[MEMO_KEY]
    calls = []
    for part in parts:
        first = None
        if visibility.causal:  # the first query that may see a key of each chunk
            first = tuple(torch.searchsorted(seq.index, part.index[:: online.CHUNK].contiguous()).tolist())
        calls.append(online.Call(seq, part, visibility, scale, online.CHUNK, shaping.cap, first))
    # Autograd asks for the gradients of its arguments alone, so the weights of the bias are arguments too.
    weights = online.trained_weights(scheme(seq, seq, "bias"))
    sink = shaping.logits(online.at_least_float32(q[:, :, :1]))
    out: Tensor = _Ring.apply(ring, calls, q, k, v, sink, *weights)
    return out


class _Ring(torch.autograd.Function):
    """The forward pass, and its gradient by the same ring."""

    @staticmethod
    def forward(
        ctx: Any,
        ring: Ring,
        calls: list[online.Call],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sink: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        """Return the outputs of the queries (B, H, n, K) of this rank over the keys of all ranks: (B, H, n, values)."""
        out, log_sum, travelling = q, q, [k, v]  # of no keys yet
        with full_precision(q):
            for hop in range(ring.world):
                owner = (ring.rank - hop) % ring.world  # the process that the keys at hand are from
                last = hop == ring.world - 1
                arriving: list[Tensor] = []
                waiting: list[Any] = []
                if not last:
                    arriving, waiting = ring.passed_on(travelling, _sizes(travelling, calls, owner - 1))
                # The next keys travel while these are read.
                part, log_part = online.forward(calls[owner], q, *travelling)
                if hop == 0:
                    out, log_sum = part, log_part
                else:
                    out, log_sum = merged(out, log_sum, part, log_part)
                for request in waiting:
                    request.wait()
                travelling = arriving
            out, log_sum = online.with_sink(out, log_sum, sink)
        out = out.to(v.dtype)
        ctx.ring, ctx.calls = ring, calls
        ctx.save_for_backward(q, k, v, out, log_sum, sink, *weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ring, calls = ctx.ring, ctx.calls
        q, k, v, out, log_sum, sink, *weights = ctx.saved_tensors
        exact = log_sum.dtype
        to_q = torch.zeros_like(q, dtype=exact)
        to_weights = [torch.zeros_like(weight) for weight in weights]
        # The gradients of keys and values travel with them, and each process adds its part.
        travelling = [k, v]
        gradients = [torch.zeros_like(k, dtype=exact), torch.zeros_like(v, dtype=exact)]
        with full_precision(q):
            for hop in range(ring.world):
                owner = (ring.rank - hop) % ring.world
                some_k, some_v = travelling
                gradients_of_part = online.backward(calls[owner], q, some_k, some_v, out, log_sum, grad, list(weights))
                for sums, more in zip([to_q, *gradients, *to_weights], gradients_of_part, strict=True):
                    if more is not None:
                        sums += more
                # After the last hop the gradients are one process short of home.
                going = [*travelling, *gradients] if hop < ring.world - 1 else gradients
                arriving, waiting = ring.passed_on(going, _sizes(going, calls, owner - 1))
                for request in waiting:
                    request.wait()
                travelling, gradients = arriving[:-2], arriving[-2:]
            to_sink = online.sink_gradient(out, log_sum, grad, sink)  # of the queries of this process
        to_k, to_v = gradients
        return None, None, to_q.to(q.dtype), to_k.to(k.dtype), to_v.to(v.dtype), to_sink, *to_weights


def merged(out: Tensor, log_sum: Tensor, part: Tensor, log_part: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, n, K) over two sets of keys and the logarithm of its sums (B, H, n, 1)."""
    total = torch.logaddexp(log_sum, log_part)
    shift = total.masked_fill(total == online.NEVER, 0.0)
    return out * (log_sum - shift).exp() + part * (log_part - shift).exp(), total


def _sizes(tensors: list[Tensor], calls: list[online.Call], owner: int) -> list[torch.Size]:
    """Return the sizes of such tensors for the keys of another process: (B, H', n, width)."""
    tokens = len(calls[owner % len(calls)].k_seq)
    return [torch.Size((*tensor.shape[:2], tokens, tensor.shape[3])) for tensor in tensors]
