"""`blockyard generate`: text from a decoder, or from an encoder-decoder that reads a source, token by token.

How rows are made is told in `decoding`, `beam` and `stepping`; here a run is opened, what the user asks for is
judged, and symbols become text.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from blockyard.beam import beam_search
from blockyard.choosing import Chooser
from blockyard.contracts import Memory, TextTokenizer
from blockyard.decoding import Pieces, decode_rows
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.load import Loaded, load
from blockyard.stepping import Stats

log = logging.getLogger("blockyard")

Run = str | os.PathLike[str] | RunFolder | Loaded


@dataclass
class Row:
    """One text in the making: what it goes on from, and what has been made so far."""

    prompt: str
    prompt_symbols: list[int]
    source: str | None = None
    symbols: list[int] = field(default_factory=list)
    text: str = ""


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
    beam: search the likeliest whole row with so many hypotheses, one prompt after the other
    length_penalty: the power of the length that a hypothesis' log probability is divided by; None is 1
    cache: keep keys, values and states of the past where the model can

    Raises UserError where the run is no decoder of text, the prompt holds nothing to go on from, or options
    contradict each other.
    """
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    _check_options(max_tokens, beam, length_penalty, drawn)
    loaded = run if isinstance(run, Loaded) else load(run, which=which, outputs=outputs, device=device, allow=allow)
    rows = _rows(loaded, prompts, sources)
    tokens, stats = loaded.model.ctx.tokens, Stats(prompt_tokens=sum(len(row.prompt_symbols) for row in rows))
    if length_penalty is not None and tokens.end is None:
        raise UserError(
            f"length_penalty={length_penalty}: all rows of {loaded.folder.name} get the same length, since its data "
            "has no end symbol; leave it out"
        )
    memory = None if sources is None else _encoded(loaded, [row.source or "" for row in rows])
    if beam is not None:
        steps = _beams(loaded, rows, memory, stats, width=beam, max_tokens=max_tokens, cache=cache,
                       length_penalty=1.0 if length_penalty is None else length_penalty)  # fmt: skip
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


def _beams(
    loaded: Loaded, rows: list[Row], memory: Memory | None, stats: Stats, **settings: Any
) -> Iterator[list[tuple[int, int]]]:
    from blockyard.model._cache import rows_of

    for number, row in enumerate(rows):
        one = None if memory is None else rows_of(memory, torch.tensor([number]))
        end = loaded.model.ctx.tokens.end
        for symbol in beam_search(loaded.model, row.prompt_symbols, stats=stats, memory=one, end=end, **settings):
            yield [(number, symbol)]


def stream_to_terminal(run: str, prompts: Sequence[str], **settings: Any) -> Stats:
    """The prompts and what follows on standard output, the cost on standard error.

    The first row is written as it comes, the others after it, each behind a line with its number.
    """
    made = generate_all(run, prompts, **settings)
    several = len(made.rows) > 1
    sys.stdout.write(_title(made.rows, 0) if several else "")
    sys.stdout.write(made.rows[0].prompt)
    for number, piece in made:
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


def lines_of(name: str, path: str) -> list[str]:
    """One text for each line of a file that is not empty. Raises UserError where there is none."""
    try:
        lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}={path}: cannot be read ({error})") from error
    if not lines:
        raise UserError(f"{name}={path}: holds no line")
    return lines


def _check_options(max_tokens: int, beam: int | None, length_penalty: float | None, drawn: dict[str, Any]) -> None:
    """Raises UserError for a value out of range, and for one that says nothing beside the others."""
    given = {name: value for name, value in drawn.items() if value is not None}
    ranges = {
        "temperature": (lambda v: 0 <= v < float("inf"), "a number from 0; 0 takes the likeliest token"),
        "top_k": (lambda v: v >= 0, "a whole number from 0; 0 is all tokens"),
        "top_p": (lambda v: 0 < v <= 1, "a number above 0, at most 1"),
        "seed": (lambda v: 0 <= v < 2**62, "a whole number from 0"),
    }
    if max_tokens < 1:
        raise UserError(f"max_tokens={max_tokens}: takes a whole number from 1")
    for name, value in given.items():
        fits, words = ranges[name]
        if not fits(value):
            raise UserError(f"{name}={value}: takes {words}")
    if beam is not None and beam < 1:
        raise UserError(f"beam={beam}: takes a whole number from 1")
    if length_penalty is not None and not 0 <= length_penalty < float("inf"):
        raise UserError(f"length_penalty={length_penalty}: takes a number from 0")
    if length_penalty is not None and beam is None:
        raise UserError(f"length_penalty={length_penalty}: compares the rows of a beam; give beam=4 with it")
    if beam is not None and given:
        name, value = next(iter(given.items()))
        raise UserError(f"{name}={value} with beam={beam}: a beam draws nothing, it keeps the likeliest; leave one out")
    idle = {name: value for name, value in given.items() if name != "temperature"}
    if given.get("temperature") == 0 and idle:
        name, value = next(iter(idle.items()))
        raise UserError(f"{name}={value} with temperature=0: the likeliest token is taken, none drawn; leave one out")


def _rows(loaded: Loaded, prompts: Sequence[str], sources: Sequence[str] | None) -> list[Row]:
    """A row for each prompt and source. Raises UserError where the run cannot go on from them."""
    name, ctx = loaded.folder.name, loaded.model.ctx
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"{name} is a model of {loaded.data.spec.modality}s; generate needs one of text")
    if not ctx.causal or loaded.objective.takes != "token":
        raise UserError(f"{name} is no decoder; generate needs model=decoder with objective=next_token")
    reads = ctx.data.source is not None
    if reads and sources is None:
        raise UserError(f'{name} writes from a source: give source=TEXT, such as source="..."')
    if not reads and sources is not None:
        raise UserError(f"{name} reads no source, it goes on from prompt=TEXT; leave source out")
    if sources is not None and len(prompts) == 1:
        prompts = list(prompts) * len(sources)
    if sources is not None and len(prompts) != len(sources):
        raise UserError(f"{len(prompts)} prompts and {len(sources)} sources: give as many, or one prompt for all")
    first = [] if ctx.tokens.start is None else [ctx.tokens.start]
    rows = []
    for number, prompt in enumerate(prompts):
        symbols = [*first, *_symbols(loaded, "prompt", prompt)]
        if not symbols:
            raise UserError('the prompt is empty: give at least one character, such as prompt="The"')
        rows.append(Row(prompt, _last(loaded, symbols), None if sources is None else sources[number]))
    return rows


def _last(loaded: Loaded, symbols: list[int]) -> list[int]:
    from blockyard.stepping import limit_of

    limit = limit_of(loaded.model)
    if limit is not None and len(symbols) > limit:
        log.warning("the prompt has %d tokens, the model sees the last %d", len(symbols), limit)
        return symbols[-limit:]
    return symbols


def _encoded(loaded: Loaded, sources: list[str]) -> Memory:
    """What the encoder makes of the sources. Raises UserError for one that it cannot read."""
    rows = [_symbols(loaded, "source", source) for source in sources]
    longest = max(map(len, rows))
    if not min(map(len, rows)):
        raise UserError("a source is empty: give at least one character")
    known = loaded.model.ctx.data.source[0]
    if longest > known and loaded.model.encoder.position.bounded:
        raise UserError(f"a source has {longest} tokens, and the model knows {known} places; give a shorter one")
    lengths = torch.tensor([len(row) for row in rows])
    source = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])  # (R, M)
    device = next(loaded.model.parameters()).device
    alike = bool((lengths == longest).all())
    with torch.inference_mode():
        try:
            return loaded.model.encode(source.to(device), None if alike else lengths.to(device))
        except ValueError as error:
            raise UserError(f"the sources cannot be encoded together: {error}") from error


def _symbols(loaded: Loaded, what: str, text: str) -> list[int]:
    try:
        symbols = loaded.tokenizer.encode(text)
        read = loaded.tokenizer.decode(symbols)
    except UnicodeEncodeError as error:
        raise UserError(f"the {what} is no valid text: {error}") from error
    if read != text:
        unknown = sorted({c for c in text if loaded.tokenizer.decode(loaded.tokenizer.encode(c)) != c})
        which = f" ({' '.join(map(repr, unknown[:8]))})" if unknown else ""
        log.warning("the tokenizer does not know all of the %s%s; the model reads %r", what, which, read[-80:])
    return symbols
