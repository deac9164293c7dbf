"""What is asked of `blockyard generate`: options, prompts and sources, judged and made into rows of symbols."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from blockyard.contracts import Memory, TextTokenizer
from blockyard.errors import UserError
from blockyard.generate.stepper import limit_of, places_of
from blockyard.runs.load import Loaded

log = logging.getLogger("blockyard")


@dataclass
class Row:
    """One text in the making: what it goes on from, and what has been made so far."""

    prompt: str
    prompt_symbols: list[int]
    source: str | None = None
    symbols: list[int] = field(default_factory=list)
    text: str = ""


def lines_of(name: str, path: str) -> list[str]:
    """One text for each line of a file that is not empty. Raises UserError where there is none."""
    try:
        lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}={path}: cannot be read ({error})") from error
    if not lines:
        raise UserError(f"{name}={path}: holds no line")
    return lines


def check_options(max_tokens: int, beam: int | None, length_penalty: float | None, drawn: dict[str, Any]) -> None:
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


def check_device(device: str) -> None:
    """Raises UserError for a device that is not there, or not known."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (":" in device and not number.isdecimal()):
        raise UserError(f"device={device}: takes cpu, cuda, or one of several such as cuda:1")
    there = torch.cuda.device_count() if kind == "cuda" else 1
    if int(number or 0) >= there:
        has = "no CUDA device" if kind == "cuda" and not there else f"{there} {kind} device{'s' * (there > 1)}"
        raise UserError(f"device={device}: this machine has {has}; use device=cpu")


def rows_to_write(loaded: Loaded, prompts: Sequence[str], sources: Sequence[str] | None) -> list[Row]:
    """A row for each prompt and source. Raises UserError where the run cannot go on from them."""
    name, ctx = loaded.folder.name, loaded.model.ctx
    if loaded.objective.target == "symbols":
        raise UserError(
            f"{name} answers what is asked in a row of {loaded.data.spec.things}, it does not write one: its objective "
            "learns the answers and not the next symbol; `blockyard eval` says how many are right. generate needs "
            "model=decoder with objective=next_token on text"
        )
    if not isinstance(loaded.tokenizer, TextTokenizer):
        raise UserError(f"{name} is a model of {loaded.data.spec.things}; generate needs one of text")
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
    if loaded.model.ctx.tokens.end is not None:  # cut, it would lose its start
        places = places_of(loaded.model)
        if len(symbols) > places:
            raise UserError(
                f"the prompt has {len(symbols)} tokens with its start, and rows of {loaded.folder.name} end at "
                f"{places}; give a shorter one"
            )
        return symbols
    limit = limit_of(loaded.model)
    if limit is not None and len(symbols) > limit:
        log.warning("the prompt has %d tokens, the model sees the last %d", len(symbols), limit)
        return symbols[-limit:]
    return symbols


def encoded(loaded: Loaded, sources: list[str]) -> Memory:
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
