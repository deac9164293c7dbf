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
from collections.abc import Iterator
from typing import Any

from blockyard.contracts import TextTokenizer
from blockyard.decoding import Chooser, Stats, decode, pieces
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, load

log = logging.getLogger("blockyard")


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
