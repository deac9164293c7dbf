"""Rows in the making: the scores of what comes next, from a cache where the model has one.

With a cache each step costs one token; without, the whole row runs again. Both follow one rule for
rows that outgrow the model, so that greedy text is the same: where the position scheme knows no
further place (`bounded`) or a mixer takes rows of one length only, the row is cut to its last
half context and goes on from there; all others just go on. A row that is written up to an end symbol
is never cut: what it began with would be lost. It ends where the model's places do (`room`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from blockyard.contracts import Memory
from blockyard.model._cache import rows_of

log = logging.getLogger("blockyard")

WHOLE = "full recomputation: the whole row ran for each token"


@dataclass
class Stats:
    """What a generation cost.

    tokens: written, of all rows, without end symbols and without what a beam gave up; steps: forward passes
    seconds: from the first forward pass on; first_seconds: until the first token
    way: what each step reads the past from, in words
    cache_bytes: what is kept in the end, of all rows; None without a cache
    cache_bytes_per_token: what the last token of a row added to it: nothing where a state stays as large as it is,
        or a window is full; None without a cache
    cuts: how often the rows were cut to half a context
    unfinished: rows that had no end symbol when they came to the last place of the model; places: how many it has
    """

    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    cache_bytes: int | None = None
    cache_bytes_per_token: float | None = None
    cuts: int = 0
    unfinished: int = 0
    places: int = 0
    way: str = "full recomputation"

    @property
    def tokens_per_second(self) -> float:
        """Tokens made per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        each = self.cache_bytes_per_token
        kept = ""
        if each is not None:
            many = f"{each:,.0f} cache bytes per token" if each else f"{self.cache_bytes or 0:,} cache bytes in all"
            kept = f", {many}" if each else f", {many}, however long the row"
        steps = f" in {self.steps} step{'s' * (self.steps != 1)}" if self.steps != self.tokens else ""
        cuts = f", row cut {self.cuts} times" if self.cuts else ""
        rows = "1 row" if self.unfinished == 1 else f"{self.unfinished} rows"
        ended = f", {rows} ended without an end symbol, at the {self.places} places of the model"
        tokens = f"{self.tokens} token{'s' * (self.tokens != 1)}{steps}, {self.tokens_per_second:,.1f} tokens/s"
        return f"{tokens}, {self.way}{kept}{cuts}{ended if self.unfinished else ''}"


def limit_of(model: Any) -> int | None:
    """The longest row that a model takes; None where it takes any."""
    if not all(mixer.traits.any_length for mixer in model.mixers):
        return model.ctx.tokens.max_len
    return int(model.ctx.tokens.max_len * model.position.length_scale) if model.position.bounded else None


def places_of(model: Any) -> int:
    """The tokens of the longest row that is written up to an end symbol: where a scheme of positions knows no
    last place, those of the data's longest rows.
    """
    limit = limit_of(model)
    return int(model.ctx.tokens.max_len) if limit is None else limit


def room(model: Any, prompt: Sequence[int], max_tokens: int, end: int | None) -> int:
    """How many tokens may follow a prompt. The last of them, or the end symbol, needs no place: nobody reads it."""
    return max_tokens if end is None else max(0, min(max_tokens, places_of(model) - len(prompt) + 1))


def no_text(model: Any, end: int | None) -> list[int]:
    """Symbols that no row holds: the start, the mask, and an end that nobody ends at."""
    tokens = model.ctx.tokens
    special = (getattr(tokens, name, None) for name in ("start", "mask", "end"))
    return sorted({symbol for symbol in special if symbol is not None and symbol != end})


def way_of(cache: Any) -> str:
    """What a cache keeps of the past, in words; several kinds where layers differ."""
    kinds = [kind for layer in cache.layers if (kind := getattr(layer, "kind", "cache"))]
    return " and ".join(dict.fromkeys(kinds)) or "nothing kept (no token reads another)"


class Stepper:
    """Rows of one length, which grow together.

    memory: the encoded sources, a row each, for a model that reads some
    cache: keep what the past gives; where the model cannot, a word says so and the whole row runs each time
    end: the symbol that rows end at, where they do. What is no text gets no score: start, mask, another end
    """

    def __init__(
        self,
        model: nn.Module,
        rows: list[list[int]],
        *,
        cache: bool,
        memory: Memory | None = None,
        stats: Stats,
        end: int | None = None,
    ) -> None:
        self.model, self.rows, self.memory, self.stats = model, [list(row) for row in rows], memory, stats
        self.limit = limit_of(model)
        self._device = next(model.parameters()).device
        self._sources = list(range(len(rows)))  # the prompt that each row goes on from
        self._no_text = torch.tensor(no_text(model, end), dtype=torch.int64, device=self._device)
        self._cache = self._start() if cache else None
        if not cache:
            self.stats.way = f"{WHOLE}, as cache=false asks"
        self._seen = 0  # tokens of each row that the cache holds
        self._held: tuple[int, int] | None = None  # bytes and length after the last pass of this cache
        self._began: float | None = None

    def _start(self) -> Any:
        try:
            made = self.model.init_cache(len(self.rows))
        except ValueError as error:
            log.warning("no cache, each token runs the whole row again: %s", error)
            without = {type(mixer).__name__ for mixer in self.model.mixers if not hasattr(mixer, "init_cache")}
            self.stats.way = f"{WHOLE}, since {', '.join(sorted(without)) or 'the model'} has no cache"
            return None
        self.stats.way = way_of(made)
        return made

    @torch.inference_mode()
    def scores(self) -> Tensor:
        """Scores of what follows each row: (R, V)."""
        self._began = self._began or time.perf_counter()
        self.stats.steps += 1
        scores = self._next()  # (R, V)
        return scores.index_fill(-1, self._no_text, -math.inf) if len(self._no_text) else scores

    def _next(self) -> Tensor:
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
        if self.stats.tokens:
            self.stats.first_seconds = self.stats.first_seconds or self.stats.seconds

    def unfinished(self) -> None:
        """Count a row that ended at the model's last place."""
        self.stats.unfinished += 1
        self.stats.places = places_of(self.model)

    def reorder(self, order: list[int]) -> None:
        """Row r goes on from what row `order[r]` was; rows may be repeated, or left out."""
        picked = torch.tensor(order, device=self._device)
        sources = [self._sources[number] for number in order]
        if self._held is not None:
            # Bytes of more rows are no growth of a row.
            self._held = (self._held[0] * len(order) // len(self.rows), self._held[1])
        self.rows = [list(self.rows[number]) for number in order]
        if self._cache is not None:
            self._cache.reorder(picked, one_source=True)
        if self.memory is not None and sources != self._sources:
            # Where every row keeps its source, what was worked out from it stays.
            self.memory = rows_of(self.memory, picked)
            if self._cache is not None:
                self._cache.memory = self.memory
        self._sources = sources
