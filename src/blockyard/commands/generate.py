"""blockyard generate run=RUN prompt=TEXT | prompts=FILE | source=TEXT | sources=FILE [max_tokens=200] [how]

Stream text from a run: what follows a prompt, or what is written from a source where the run has an encoder.
prompt= and source= may be repeated, a FILE holds one a line; all rows are then made at once.
how   temperature=0.8 top_k=40 (0: all) top_p=0.9 seed=0, or temperature=0: the likeliest token each time, or
      beam=4 [length_penalty=1.0]: the likeliest whole row that so many hypotheses find
cache=false runs the whole row again for each token. What was kept, speed and bytes are told on standard error.
device=cuda runs on a GPU; it is cpu otherwise.
which=last takes the last checkpoint, which=previous the one before it; outputs=FOLDER is where runs lie;
allow=[PACKAGE] trusts a package of your own that the run uses.

example: blockyard generate run=last prompt="def " max_tokens=200 temperature=0.8 top_k=40
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockyard.commands._args import CHECKPOINTS, Args, only, packages, read
from blockyard.errors import UserError


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


# key: how to read it, what it must be, in words and as a test
KEYS: dict[str, tuple[Callable[[str], Any], str, Callable[[Any], bool]]] = {
    "max_tokens": (int, "a whole number from 1", lambda value: value >= 1),
    "temperature": (float, "a number from 0", lambda value: 0 <= value < float("inf")),
    "top_k": (int, "a whole number from 0", lambda value: value >= 0),
    "top_p": (float, "a number above 0, at most 1", lambda value: 0 < value <= 1),
    "seed": (int, "a whole number from 0", lambda value: value >= 0),
    "beam": (int, "a whole number from 1", lambda value: value >= 1),
    "length_penalty": (float, "a number from 0", lambda value: 0 <= value < float("inf")),
    "cache": (_truth, "true or false", lambda _: True),
    "device": (str, "cpu, cuda, or one of several such as cuda:1", bool),
    "which": (str, f"one of {', '.join(CHECKPOINTS)}", lambda value: value in CHECKPOINTS),
}
TEXTS = ("prompt", "prompts", "source", "sources")


def run(arguments: Sequence[str]) -> int:
    """Stream to standard output, figures to standard error."""
    words = read(arguments, {})
    name, prompts, sources = words.take("run"), _texts(words, "prompt"), _texts(words, "source")
    given = {key: words.take(key) for key in KEYS}
    outputs, allow = words.take("outputs", "outputs"), packages(words)
    only(words, "generate", ("run", *TEXTS, *KEYS, "outputs", "allow"))
    if not name:
        raise UserError("generate takes run=RUN: a path, an id, part of a name, or last")
    if prompts is None and sources is None:
        raise UserError('generate takes prompt=TEXT, such as prompt="def ", or source=TEXT for a run with an encoder')
    settings = {key: _value(key, text) for key, text in given.items() if text is not None}
    from blockyard.generate.api import stream_to_terminal

    stream_to_terminal(name, prompts or [""], sources=sources, **settings, outputs=outputs, allow=allow)
    return 0


def _texts(words: Args, key: str) -> list[str] | None:
    """Every `key=TEXT`, or the lines of `keys=FILE`; None where neither is given."""
    texts, path = words.every(key), words.take(f"{key}s")
    if path is None:
        return texts or None
    if texts:
        raise UserError(f"{key}= and {key}s= are both given; give one of them")
    from blockyard.generate.request import read_lines

    return read_lines(f"{key}s", path)


def _value(key: str, text: str) -> Any:
    convert, legal, fits = KEYS[key]
    try:
        value = convert(text)
    except ValueError:
        raise UserError(f"{key}={text}: takes {legal}") from None
    if not fits(value):
        raise UserError(f"{key}={text}: takes {legal}")
    return value
