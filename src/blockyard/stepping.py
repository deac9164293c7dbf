"""Rows in the making: the scores of what comes next, from a cache where the model has one.

With a cache each step costs one token; without, the whole row runs again. Both follow one rule for
rows that outgrow the model, so that greedy text is the same: where the position scheme knows no
further place (`bounded`) or a mixer takes rows of one length only, the row is cut to its last
half context and goes on from there; all others just go on.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Memory
from blockyard.model._cache import rows_of

log = logging.getLogger("blockyard")


@dataclass
class Stats:
    """What a generation cost.

    tokens: made, of all rows; seconds: from the first forward pass on; first_seconds: until the first token
    cache_bytes: what is kept in the end, of all rows; None without a cache
    cache_bytes_per_token: what the last token of a row added to it: nothing where a state stays as large as it is,
        or a window is full; None without a cache
    cuts: how often the rows were cut to half a context
    """

    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    cache_bytes: int | None = None
    cache_bytes_per_token: float | None = None
    cuts: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Tokens made per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        each = self.cache_bytes_per_token
        if each is None:
            cache = "no cache: the whole row ran for each token"
        elif each:
            cache = f"{each:,.0f} cache bytes per token"
        else:
            cache = f"{self.cache_bytes or 0:,} cache bytes in all, however long the row"
        cuts = f", row cut {self.cuts} times" if self.cuts else ""
        return f"{self.tokens} tokens, {self.tokens_per_second:,.1f} tokens/s, {cache}{cuts}"


def limit_of(model: Any) -> int | None:
    """The longest row that a model takes; None where it takes any."""
    if not all(mixer.traits.any_length for mixer in model.mixers):
        return model.ctx.tokens.max_len
    return int(model.ctx.tokens.max_len * model.position.stretch) if model.position.bounded else None


class Stepper:
    """Rows of one length, which grow together.

    memory: the encoded sources, a row each, for a model that reads some
    cache: keep what the past gives; where the model cannot, a word says so and the whole row runs each time
    """

    def __init__(
        self, model: nn.Module, rows: list[list[int]], *, cache: bool, memory: Memory | None = None, stats: Stats
    ) -> None:
        self.model, self.rows, self.memory, self.stats = model, [list(row) for row in rows], memory, stats
        self.limit = limit_of(model)
        self._device = next(model.parameters()).device
        self._cache = self._start() if cache else None
        self._seen = 0  # tokens of each row that the cache holds
        self._held: tuple[int, int] | None = None  # bytes and length after the last pass of this cache
        self._began: float | None = None

    def _start(self) -> Any:
        try:
            return self.model.init_cache(len(self.rows))
        except ValueError as error:
            log.warning("no cache, each token runs the whole row again: %s", error)
            return None

    @torch.inference_mode()
    def scores(self) -> Tensor:
        """Scores of what follows each row: (R, V)."""
        self._began = self._began or time.perf_counter()
        if self.limit is not None and len(self.rows[0]) > self.limit:
            self.rows = [row[-max(1, self.limit // 2) :] for row in self.rows]
            self.stats.cuts += 1
            self._cache = None if self._cache is None else self._start()
            self._seen, self._held = 0, None
        if self._cache is None:
            return self._whole()
        fresh = torch.tensor([row[self._seen :] for row in self.rows], device=self._device)  # (R, new)
        # The cache keeps the memory that came with the first tokens.
        known = self.memory is None or self._cache.memory is not None
        scores = self.model(fresh, cache=self._cache, **({} if known else {"memory": self.memory}))[:, -1]
        self._seen = len(self.rows[0])
        self._count(self._cache.bytes, self._cache.length)
        return scores

    def _whole(self) -> Tensor:
        # A causal model's scores do not depend on what stands behind.
        fixed = not all(mixer.traits.any_length for mixer in self.model.mixers)
        length = len(self.rows[0])
        padding = [0] * (self.model.ctx.tokens.max_len - length if fixed else 0)
        inputs = torch.tensor([row + padding for row in self.rows], dtype=torch.int64, device=self._device)  # (R, N)
        named = {} if self.memory is None else {"memory": self.memory}
        return self.model(inputs, **named)[:, length - 1]  # (R, V)

    def _count(self, held: int, length: int) -> None:
        self.stats.cache_bytes = held
        before, self._held = self._held, (held, length)
        if before is None:
            self.stats.cache_bytes_per_token = held / length / len(self.rows)
        elif length > before[1]:
            # Of the last tokens alone: a window that is full by now grows no more.
            self.stats.cache_bytes_per_token = (held - before[0]) / (length - before[1]) / len(self.rows)

    def append(self, symbols: list[int]) -> None:
        """A symbol more for each row."""
        for row, symbol in zip(self.rows, symbols, strict=True):
            row.append(symbol)

    def made(self, count: int) -> None:
        """Count `count` tokens more in the figures."""
        now = time.perf_counter()
        self.stats.tokens += count
        self.stats.seconds = now - (self._began or now)
        self.stats.first_seconds = self.stats.first_seconds or self.stats.seconds

    def reorder(self, order: list[int]) -> None:
        """Row r goes on from what row `order[r]` was; rows may be repeated, or left out."""
        same = len(order) == len(self.rows)
        picked = torch.tensor(order, device=self._device)
        if self._held is not None and not same:
            # Bytes of more rows are no growth of a row.
            self._held = (self._held[0] * len(order) // len(self.rows), self._held[1])
        self.rows = [list(self.rows[number]) for number in order]
        if self.memory is not None and not same:
            self.memory = rows_of(self.memory, picked)
        if self._cache is not None:
            self._cache.reorder(picked, one_source=True)
            if not same:
                self._cache.memory = self.memory
