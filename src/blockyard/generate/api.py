"""`blockyard generate`: text from a decoder, or from an encoder-decoder that reads a source, token by token.

How rows are made is told in `decoding`, `beam` and `stepping`; here a run is opened, what the user asks for is
judged, and symbols become text.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from blockyard.contracts import TextTokenizer
from blockyard.errors import UserError
from blockyard.generate.beam_search import beam_rows
from blockyard.generate.decode import Pieces, decode_rows
from blockyard.generate.request import Row, check_device, check_options, encoded, rows_to_write
from blockyard.generate.sampling import Chooser
from blockyard.generate.stepper import Stats
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, load

Run = str | os.PathLike[str] | RunFolder | Loaded


class Texts:
    """Several texts in the making: iterate over it for (row, piece), then read `rows` and `stats`."""

    def __init__(self, loaded: Loaded, rows: list[Row], steps: Iterator[list[tuple[int, int]]], stats: Stats) -> None:
        self.loaded, self.rows, self.stats, self._steps = loaded, rows, stats, steps

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Pieces of text, whole characters only, as they come; the sum of a row's is its `text`."""
        assert isinstance(self.loaded.tokenizer, TextTokenizer)
        held = [Pieces(self.loaded.tokenizer) for _ in self.rows]
        for step in self._steps:
            for number, symbol in step:
                self.rows[number].symbols.append(symbol)
                yield from self._piece(number, held[number].push(symbol))
        for number, pieces in enumerate(held):
            yield from self._piece(number, pieces.rest())

    def _piece(self, number: int, piece: str) -> Iterator[tuple[int, str]]:
        if piece:
            self.rows[number].text += piece
            yield number, piece


class Generation:
    """One text in the making: iterate over it for the pieces, then read `text`, `symbols` and `stats`."""

    def __init__(self, texts: Texts) -> None:
        self.texts, self.stats, self.loaded = texts, texts.stats, texts.loaded
        self.prompt, self.prompt_symbols = texts.rows[0].prompt, texts.rows[0].prompt_symbols
        self.symbols = texts.rows[0].symbols  # made so far

    def __iter__(self) -> Iterator[str]:
        """Pieces of text, whole characters only; their sum is `text`."""
        return (piece for _, piece in self.texts)

    @property
    def text(self) -> str:
        """What has been made so far."""
        return self.texts.rows[0].text


def generate(run: Run, prompt: str = "", *, source: str | None = None, **settings: Any) -> Generation:
    """Text that goes on from `prompt`, or that is written from `source`; settings as in `generate_all`."""
    return Generation(generate_all(run, [prompt], sources=None if source is None else [source], **settings))


def generate_all(
    run: Run,
    prompts: Sequence[str] = ("",),
    *,
    sources: Sequence[str] | None = None,
    max_tokens: int = 200,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    cache: bool = True,
    which: str = "best",
    outputs: str | os.PathLike[str] = "outputs",
    allow: tuple[str, ...] | list[str] = (),
    device: str = "cpu",
) -> Texts:
    """Texts that go on from each of `prompts`, all at once; nothing runs until it is iterated over.

    sources: what an encoder reads, one for each prompt (a single prompt serves all)
    temperature: None is 0.8; 0 takes the likeliest token each time (greedy)
    top_k: the choice is among so many, 0 among all; None is 40, or all where top_p is given
    top_p: the choice is among the likeliest that have this probability together
    seed: None is 0; row r draws from seed + r, so that the first row is what it would be alone
    beam: search the likeliest whole row with so many hypotheses for each prompt
    length_penalty: the power of the length that a hypothesis' log probability is divided by; None is 1
    cache: keep keys, values and states of the past where the model can
    device: cpu, cuda or cuda:1, for a run that is not loaded yet

    Raises UserError where the run is no decoder of text, the prompt holds nothing to go on from, or options
    contradict each other.
    """
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    check_options(max_tokens, beam, length_penalty, drawn)
    check_device(device)
    loaded = run if isinstance(run, Loaded) else load(run, which=which, outputs=outputs, device=device, allow=allow)
    rows = rows_to_write(loaded, prompts, sources)
    tokens, stats = loaded.model.ctx.tokens, Stats(prompt_tokens=sum(len(row.prompt_symbols) for row in rows))
    if length_penalty is not None and tokens.end is None:
        raise UserError(
            f"length_penalty={length_penalty}: all rows of {loaded.folder.name} get the same length, since its data "
            "has no end symbol; leave it out"
        )
    memory = None if sources is None else encoded(loaded, [row.source or "" for row in rows])
    if beam is not None:
        steps = beam_rows(
            loaded.model,
            [row.prompt_symbols for row in rows],
            width=beam,
            max_tokens=max_tokens,
            cache=cache,
            stats=stats,
            length_penalty=1.0 if length_penalty is None else length_penalty,
            memory=memory,
            end=tokens.end,
        )
        return Texts(loaded, rows, steps, stats)
    temperature = 0.8 if temperature is None else temperature
    top_k = (40 if top_p is None else 0) if top_k is None else top_k
    choose = [Chooser(temperature, top_k, (seed or 0) + number, top_p) for number in range(len(rows))]
    steps = decode_rows(
        loaded.model,
        [row.prompt_symbols for row in rows],
        choose,
        max_tokens=max_tokens,
        cache=cache,
        stats=stats,
        memory=memory,
        end=tokens.end,
    )
    return Texts(loaded, rows, steps, stats)


def stream_to_terminal(run: str, prompts: Sequence[str], **settings: Any) -> Stats:
    """The prompts and what follows on standard output, the cost on standard error.

    The first row is written as it comes, the others after it, each behind a line with its number.
    """
    made = generate_all(run, prompts, **settings)
    several = len(made.rows) > 1
    pieces = iter(made)
    began = list(islice(pieces, 1))  # what is to be said of the run is said before the row begins
    sys.stdout.write(_title(made.rows, 0) if several else "")
    sys.stdout.write(made.rows[0].prompt)
    for number, piece in chain(began, pieces):
        if number == 0:
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")
    for number, row in enumerate(made.rows[1:], start=1):
        sys.stdout.write(f"{_title(made.rows, number)}{row.prompt}{row.text}\n")
    sys.stdout.flush()
    sys.stderr.write(f"{made.stats}\n")
    return made.stats


def _title(rows: list[Row], number: int) -> str:
    source = rows[number].source
    return f"--- {number + 1} of {len(rows)}{'' if source is None else f': {source}'}\n"
