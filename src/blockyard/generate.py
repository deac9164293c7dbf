"""`blockyard generate`: text from a decoder, token by token.

With a cache each step costs one token; without, the whole row runs again. Both follow one rule for
rows that outgrow the model, so that greedy text is the same: where the position scheme knows no
further place (`bounded`) or a mixer takes rows of one length only, the row is cut to its last
half context and goes on from there; all others just go on.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, load

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


class Generation:
    """Text in the making: iterate over it for the pieces, then read `text` and `stats`."""

    def __init__(self, loaded: Loaded, prompt: str, symbols: list[int], steps: Iterator[int], stats: Stats) -> None:
        self.loaded = loaded
        self.prompt = prompt
        self.prompt_symbols = symbols
        self.symbols: list[int] = []  # made so far
        self.text = ""
        self.stats = stats
        self._steps = steps

    def __iter__(self) -> Iterator[str]:
        """Pieces of text, whole characters only; their sum is `text`."""
        assert isinstance(self.loaded.tokenizer, TextTokenizer)
        for piece in pieces(self.loaded.tokenizer, self._made()):
            self.text += piece
            yield piece

    def _made(self) -> Iterator[int]:
        for symbol in self._steps:
            self.symbols.append(symbol)
            yield symbol


def generate(
    run: str | os.PathLike[str] | RunFolder | Loaded,
    prompt: str,
    *,
    max_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = 40,
    seed: int = 0,
    cache: bool = True,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    device: str = "cpu",
) -> Generation:
    """Text that goes on from `prompt`; nothing runs until it is iterated over.

    temperature: 0 takes the likeliest token each time; top_k: the choice is among so many, 0 or
    None among all; cache: keep keys and values where the model can

    Raises UserError where the run is no decoder of text, or the prompt holds nothing to go on from.
    """
    _check_options(max_tokens, temperature, top_k, seed)
    loaded = run if isinstance(run, Loaded) else load(run, which=which, outputs=outputs, device=device, allow=allow)
    symbols = _prompt_symbols(loaded, prompt)
    stats = Stats(prompt_tokens=len(symbols))
    chooser = Chooser(temperature, top_k, seed)
    steps = decode(loaded.model, symbols, chooser, max_tokens=max_tokens, cache=cache, stats=stats)
    return Generation(loaded, prompt, symbols, steps, stats)


def stream_to_terminal(run: str, prompt: str, **settings: Any) -> Stats:
    """The prompt and what follows on standard output as it comes, the cost on standard error."""
    made = generate(run, prompt, **settings)
    sys.stdout.write(prompt)
    for piece in made:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    sys.stderr.write(f"{made.stats}\n")
    return made.stats


class Chooser:
    """Picks the next token from its scores, on the CPU, so that a seed means the same everywhere."""

    def __init__(self, temperature: float, top_k: int | None, seed: int) -> None:
        self.temperature, self.top_k = temperature, top_k
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, scores: Tensor) -> int:
        """The symbol chosen by scores (V,). Raises UserError where they are no numbers."""
        scores = scores.detach().float().cpu()  # (V,)
        if bool(scores.isnan().any()):
            raise UserError("the model's scores are NaN: its weights are broken; try which=previous or another run")
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
    choose: Chooser,
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


def _check_options(max_tokens: int, temperature: float, top_k: int | None, seed: int) -> None:
    if max_tokens < 1:
        raise UserError(f"max_tokens={max_tokens}: takes a whole number from 1")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature={temperature}: takes a number from 0; 0 takes the likeliest token")
    if top_k is not None and top_k < 0:
        raise UserError(f"top_k={top_k}: takes a whole number from 0; 0 is all tokens")
    if not 0 <= seed < 2**63:
        raise UserError(f"seed={seed}: takes a whole number from 0")


def _prompt_symbols(loaded: Loaded, prompt: str) -> list[int]:
    name, ctx = loaded.folder.name, loaded.model.ctx
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"{name} is a model of {loaded.data.spec.modality}s; generate needs one of text")
    if not ctx.causal or loaded.objective.takes != "token":
        raise UserError(f"{name} is no decoder; generate needs model=decoder with objective=next_token")
    try:
        symbols = loaded.tokenizer.encode(prompt)
        read = loaded.tokenizer.decode(symbols)
    except UnicodeEncodeError as error:
        raise UserError(f"the prompt is no valid text: {error}") from error
    if not symbols:
        raise UserError('the prompt is empty: give at least one character, such as prompt="The"')
    if read != prompt:
        unknown = sorted({c for c in prompt if loaded.tokenizer.decode(loaded.tokenizer.encode(c)) != c})
        which = f" ({' '.join(map(repr, unknown[:8]))})" if unknown else ""
        log.warning("the tokenizer does not know all of the prompt%s; the model reads %r", which, read[-80:])
    return symbols
