"""The state of `delta_rule`, `decayed_attention`, `mamba2` and `mlstm`: its directions, documents and decoding."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from blockyard.contracts import Context, Heads, Length, Seq, TokenMixer, Traits, Width
from blockyard.ops.autocast import full_precision
from blockyard.ops.fast_weights import chunked, recurrent
from blockyard.token_mixer._caches import StateCache
from blockyard.token_mixer._checks import check_decodes, check_one_document
from blockyard.token_mixer._recurrent import backwards, reverse
from blockyard.token_mixer._short_conv import ShortConv, last_inputs


class StateMixer(TokenMixer):
    """Reads tokens in the order of the sequence. A bidirectional model reads it backwards too, and adds both outputs.

    Documents of a packed sequence are contiguous runs of tokens; each starts from the state after the prefix.
    Subclasses set `conv` and implement `split_heads`.

    delta: tokens enter the state by the delta rule, not as a sum
    closed: the rate of padding, at which nothing enters the state
    conv: the short convolution in front of the state, or None

    Options:
        num_heads: number of heads, each with a state of its own; null means model.heads
        key_dim: width of queries and keys in each head; null means model.dim / model.heads
        value_dim: width of values in each head; null means model.dim / model.heads
        chunk: tokens processed at a time; affects speed only
    """

    traits = Traits(causal=True, padding=True, packing=True, axes=frozenset({1, 2}))
    incidental: ClassVar[frozenset[str]] = frozenset({"chunk"})
    delta: ClassVar[bool] = False
    closed: ClassVar[float] = 0.0
    conv: ShortConv | None

    def __init__(
        self,
        ctx: Context,
        *,
        num_heads: Heads | None = None,
        key_dim: Width | None = None,
        value_dim: Width | None = None,
        chunk: Length = 32,
    ) -> None:
        super().__init__()
        self.causal = ctx.causal
        self.heads = num_heads or ctx.heads
        self.key_dim = key_dim or ctx.head_dim
        self.value_dim = value_dim or ctx.head_dim
        self.chunk = chunk

    def split_heads(self, h: Tensor, log: Tensor, seq: Seq) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys (B, N, H, K) and values (B, N, H, V) of the convolved projections h (B, N, C)."""
        raise AssertionError("abstract")

    def skip(self, v: Tensor) -> Tensor | float:
        """Return the term that the values (B, H, N, V) add to the outputs beside the state."""
        return 0.0

    def enter(
        self, v: Tensor, log: Tensor, rate: Tensor, order: Seq, level: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the inputs of the state for the values (B, H, N, V), the logarithms of its decays, and its levels.

        Levels (B, H, N, 1) are numbers that `leave` needs beside the state, or None.

        log: (B, H, N, K or 1), the logarithms of the decays
        rate: (B, H, N, 1), a factor on the values
        order: the tokens in the order in which they enter
        level: (B, H, 1, 1), the level after the tokens of the cache
        """
        return rate * v, log, None

    def leave(self, y: Tensor, level: Tensor | None) -> Tensor:
        """Return the outputs (B, H, N, V) from the reads of the queries y and the levels of `enter`."""
        return y

    def init_cache(self, batch_size: int) -> StateCache:
        """Return an empty cache, for the state and the last inputs of the convolution.

        Raises ValueError for a bidirectional model, whose outputs depend on the future.
        """
        check_decodes(self.causal)
        return StateCache()

    def read(self, h: Tensor, log: Tensor, rate: Tensor | None, seq: Seq, cache: StateCache | None) -> Tensor:
        """Return the reads of the queries from the state, summed over directions: (B, N, H, V), in float32 at least.

        h: (B, N, C), projections of queries, keys and values
        log: (B, N, H, K or 1), the logarithms of the decays
        rate: (B, N, H), beta of the delta rule, else the factor on the values that `enter` takes; None is 1
        """
        rate = torch.ones_like(log[..., 0]) if rate is None else rate
        if seq.valid is not None:  # padding leaves the state as it is
            padding = ~seq.valid[..., None]
            log, rate = log.masked_fill(padding[..., None], 0.0), rate.masked_fill(padding, self.closed)
        if self.causal:
            return self._read(h, log, rate, seq, cache)
        return self._read(h, log, rate, seq) + self._read(h, log, rate, seq, back=True)

    def _read(
        self,
        h: Tensor,
        log: Tensor,
        rate: Tensor,
        seq: Seq,
        cache: StateCache | None = None,
        *,
        back: bool = False,
    ) -> Tensor:
        check_one_document(self, seq, cache)
        state, past, *levels = (None, None) if cache is None or cache.parts is None else cache.parts
        order = backwards(seq) if back else seq  # the tokens as they enter the state

        def turned(x: Tensor) -> Tensor:  # (B, N, ...), between the order of the sequence and that of reading
            if back:
                return reverse(x.flatten(2), seq.valid).view(x.shape)
            return x

        mixed = h if self.conv is None else turned(self.conv(turned(h), order, past))  # (B, N, C)
        # The sums and decays lose too much in half precision: autocast is off, and all parts are in the type of `log`.
        with full_precision(h):
            parts = [*self.split_heads(mixed.to(log.dtype), log, seq), log, rate[..., None]]
            q, k, v, log, rate = (turned(part).transpose(1, 2) for part in parts)  # (B, H, N, ...)
            beta = rate if self.delta else None
            values = v
            level = levels[0] if levels else None
            if not self.delta:
                values, log, level = self.enter(v, log, rate, order, level)
            if cache is not None and len(seq) == 1:
                y, state = recurrent(q, k, values, log, beta, state=state)
            else:
                y, state = chunked(
                    *(q, k, values, log, beta),
                    segment=order.segment,
                    num_prefix=seq.num_prefix,
                    state=state,
                    chunk=self.chunk,
                )
            y = self.leave(y, level) + self.skip(v)  # (B, H, N, V)
        if cache is not None:
            reach = 0 if self.conv is None else self.conv.kernel - 1
            parts = [state, last_inputs(past, h, reach)]
            if level is not None:
                parts.append(level[:, :, -1:])
            cache.store(*parts)
        return turned(y.transpose(1, 2))  # (B, N, H, V)


def exact(x: Tensor) -> Tensor:
    """Return x in float32 at least, as states are kept."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
