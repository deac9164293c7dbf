"""From scores to text: choosing tokens, rows that outgrow the model, characters of several tokens."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError

if TYPE_CHECKING:
    from blockyard.model._transformer import Transformer

log = logging.getLogger("blockyard")

_HELD = 8  # tokens without a whole character after which one is given up; UTF-8 needs four bytes at most


@dataclass
class Stats:
    """What a generation cost.

    tokens: made; seconds: from the first forward pass on; first_seconds: until the first token
    cache_bytes_per_token: None without a cache; cuts: how often the row was cut to half a context
    """

    prompt_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0
    first_seconds: float = 0.0
    cache_bytes_per_token: float | None = None
    cuts: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Tokens made per second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        each = self.cache_bytes_per_token
        cache = "no cache" if each is None else f"{each:,.0f} cache bytes per token"
        cuts = f", row cut {self.cuts} times" if self.cuts else ""
        return f"{self.tokens} tokens, {self.tokens_per_second:,.1f} tokens/s, {cache}{cuts}"


class Chooser:
    """Picks the next token from its scores, on the CPU, so that a seed means the same everywhere."""

    def __init__(self, temperature: float, top_k: int | None, seed: int) -> None:
        self.temperature, self.top_k = temperature, top_k
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, scores: Tensor) -> int:
        """The symbol chosen by scores (V,). Raises UserError where they are no numbers."""
        scores = scores.detach().float().cpu()  # (V,)
        top = float(scores.max())  # NaN where any score is; a score of minus infinity is never chosen
        if not math.isfinite(top):
            said = "NaN" if math.isnan(top) else "infinite"
            raise UserError(f"the model's scores are {said}: its weights are broken; try which=previous or another run")
        if self.temperature == 0:
            return int(scores.argmax())
        if self.top_k:
            kept, symbols = scores.topk(min(self.top_k, len(scores)))
        else:
            kept, symbols = scores, torch.arange(len(scores))
        weights = torch.softmax((kept - kept.max()) / self.temperature, dim=-1)
        return int(symbols[torch.multinomial(weights, 1, generator=self._random)])


def decode(
    model: Transformer,
    symbols: list[int],
    choose: Callable[[Tensor], int],
    *,
    max_tokens: int,
    cache: bool,
    stats: Stats | None = None,
) -> Iterator[int]:
    """Symbols that follow `symbols`, one per step; `stats` is kept up to date."""
    stats = Stats() if stats is None else stats
    context = model.ctx.tokens.max_len
    fixed = not all(mixer.traits.any_length for mixer in model.mixers)
    limit = context if fixed or model.position.bounded else None
    row = list(symbols)
    if limit is not None and len(row) > limit:
        log.warning("the prompt has %d tokens, the model sees the last %d", len(row), limit)
        row = row[-limit:]
    memory = _memory(model, fixed) if cache else None
    fresh = row  # what the cache has not seen
    started = time.perf_counter()
    for number in range(max_tokens):
        if limit is not None and len(row) > limit:
            row = row[-max(1, limit // 2) :]
            fresh, stats.cuts = row, stats.cuts + 1
            memory = memory and model.init_cache(1)
        scores = _scores(model, row if memory is None else fresh, memory, context if fixed else None)
        symbol = choose(scores)
        fresh = [symbol]
        row.append(symbol)
        stats.tokens, stats.seconds = number + 1, time.perf_counter() - started
        stats.first_seconds = stats.first_seconds or stats.seconds
        if memory is not None:
            stats.cache_bytes_per_token = memory.bytes / memory.length
        yield symbol


@torch.inference_mode()
def _scores(model: nn.Module, row: list[int], memory: Any, pad_to: int | None) -> Tensor:
    device = next(model.parameters()).device
    # A causal model's scores do not depend on what stands behind.
    padding = [0] * (pad_to - len(row)) if pad_to else []
    inputs = torch.tensor([row + padding], dtype=torch.int64, device=device)  # (1, N)
    return model(inputs, cache=memory)[0, len(row) - 1]  # (V,)


def _memory(model: Transformer, fixed: bool) -> Any:
    try:
        if fixed:
            raise ValueError("its mixer takes rows of one length only")
        return model.init_cache(1)
    except ValueError as error:
        log.warning("no cache, each token runs the whole row again: %s", error)
        return None


def pieces(tokenizer: TextTokenizer, symbols: Iterator[int]) -> Iterator[str]:
    """Text of a stream of symbols; a character of several symbols is held back until it is whole."""
    made: list[int] = []
    begin = said = 0  # made[begin:said] is the last piece, for tokenizers whose pieces touch
    for symbol in symbols:
        made.append(symbol)
        text = tokenizer.decode(made[begin:])
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(made) - said < _HELD:
            continue
        before = len(tokenizer.decode(made[begin:said]))
        begin, said = said, len(made)
        if len(text) > before:
            yield text[before:]
    if said < len(made):
        rest = tokenizer.decode(made[begin:])[len(tokenizer.decode(made[begin:said])) :]
        if rest:
            yield rest
