"""blockyard generate run=RUN prompt=TEXT [max_tokens=200] [temperature=0.8] [top_k=40] [seed=0] [cache=true]

Stream text from a decoder's run; says afterwards how fast, and what a token costs in cache.
outputs=FOLDER is where runs lie; allow=[PACKAGE] trusts a package of your own that the run uses.
temperature=0 takes the likeliest token each time; top_k=0 considers all of them.

example: blockyard generate run=last prompt="def " max_tokens=200 temperature=0.8 top_k=40
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockyard.errors import UserError
from blockyard.verbs._words import only, packages, read


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


# key: how to read it, default, what it must be, in words and as a test
KEYS: dict[str, tuple[Callable[[str], Any], Any, str, Callable[[Any], bool]]] = {
    "max_tokens": (int, 200, "a whole number from 1", lambda value: value >= 1),
    "temperature": (float, 0.8, "a number from 0", lambda value: 0 <= value < float("inf")),
    "top_k": (int, 40, "a whole number from 0", lambda value: value >= 0),
    "seed": (int, 0, "a whole number from 0", lambda value: value >= 0),
    "cache": (_truth, True, "true or false", lambda _: True),
    "which": (str, "best", "best or last", lambda value: value in ("best", "last")),
}


def run(arguments: Sequence[str]) -> int:
    """Stream to standard output, figures to standard error."""
    words = read(arguments, {})
    name, prompt = words.take("run"), words.take("prompt")
    given = {key: words.take(key) for key in KEYS}
    outputs, allow = words.take("outputs", "outputs"), packages(words)
    only(words, "generate", ("run", "prompt", *KEYS, "outputs", "allow"))
    if not name:
        raise UserError("generate takes run=RUN: a path, an id, part of a name, or last")
    if prompt is None:
        raise UserError('generate takes prompt=TEXT, such as prompt="def "')
    settings = {}
    for key, (convert, default, legal, fits) in KEYS.items():
        text = given[key]
        try:
            settings[key] = default if text is None else convert(text)
        except ValueError:
            raise UserError(f"{key}={text}: takes {legal}") from None
        if not fits(settings[key]):
            raise UserError(f"{key}={text}: takes {legal}")
    from blockyard.generate import stream_to_terminal

    stream_to_terminal(name, prompt, **settings, outputs=outputs, allow=allow)
    return 0
