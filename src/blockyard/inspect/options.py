"""What `blockyard inspect` takes, read from words. Nothing heavy is imported here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blockyard.errors import UserError

KINDS = ("attention", "mixing", "circuits")
QUERIES = ("mean", "class", "last")
MOST_SAMPLES = 10_000


@dataclass(frozen=True)
class Options:
    """What to look at.

    layers, heads: numbers from 0; None is all
    sample: the first sample of the validation part; samples: how many from there on go into averages
    prompt: a text in place of the samples
    query: whose attention is shown: "mean" over the queries, "class", "last", or a token's number;
        None is the class token where there is one, else "last" for a causal model and "mean" for others
    of: the token "mixer" alone, or the whole "block"
    probes: random directions a token for the Jacobian; 0 is exact; None is exact where that is cheap
    vocabulary: a text whose symbols the token circuits are shown for; None is the most frequent ones
    """

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    sample: int = 0
    samples: int = 4
    prompt: str | None = None
    query: str | int | None = None
    of: str = "mixer"
    probes: int | None = None
    vocabulary: str | None = None


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers such as 0,2 or [0,2] or 0-3."""
    found: list[int] = []
    for part in text.strip("[]() ").split(","):
        ends = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if ends is None:
            raise ValueError(text)
        low, high = ends.groups()
        found += range(int(low), int(high or low) + 1)
    if not found:
        raise ValueError(text)
    return tuple(dict.fromkeys(found))


def _query(text: str) -> str | int:
    return text if text in QUERIES else _whole(text)


def _whole(text: str, least: int = 0, most: int = 10**9) -> int:
    if not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= most:
        raise ValueError(text)
    return int(text)


def _one_of(*legal: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in legal:
            raise ValueError(text)
        return text

    return convert


def _words(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


# key: the kinds that read it, how it is read, what it must be, in words
KEYS: dict[str, tuple[tuple[str, ...], Callable[[str], Any], str]] = {
    "layers": (KINDS, _numbers, "numbers from 0, such as 0,2 or 0-3"),
    "heads": (("attention", "circuits"), _numbers, "numbers from 0, such as 0,2 or 0-3"),
    "sample": (("attention", "mixing"), _whole, "a whole number from 0"),
    "samples": (
        ("attention", "mixing"),
        lambda text: _whole(text, 1, MOST_SAMPLES),
        f"a whole number from 1 to {MOST_SAMPLES}",
    ),
    "prompt": (("attention", "mixing"), _words, "a text of at least one character"),
    "query": (("attention",), _query, "mean, class, last, or a token's number from 0"),
    "of": (("mixing",), _one_of("mixer", "block"), "mixer or block"),
    "probes": (("mixing",), _whole, "a whole number from 0; 0 is exact"),
    "vocabulary": (("circuits",), _words, "a text of at least one character"),
}


def options(kinds: tuple[str, ...], given: Mapping[str, str]) -> Options:
    """The options of these kinds. Raises UserError for what one of them does not read, and for values that do not
    fit: an option holds for everything that is looked at.
    """
    found: dict[str, Any] = {}
    for key, text in given.items():
        readers, convert, legal = KEYS[key]
        others = [kind for kind in kinds if kind not in readers]
        if others:
            apart = "; give them commands of their own" if len(others) < len(kinds) else ""
            raise UserError(
                f"{key}={text}: only inspect {' and '.join(readers)} read it, not {' and '.join(others)}{apart}"
            )
        try:
            found[key] = convert(text)
        except ValueError:
            raise UserError(f"{key}={text}: takes {legal}") from None
    for key in ("sample", "samples"):
        if "prompt" in found and key in found:
            raise UserError(f"{key}={found[key]}: a prompt is looked at alone; leave out {key} or prompt")
    return Options(**found)
