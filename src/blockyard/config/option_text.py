"""Reads the text of command-line options. Each reader returns a value or raises ValueError with the expected form.

Shared by flags (`--port 80`) and by options that are not part of a config (`generate top_k=40`), so that each kind
of value is read in one way. Config values are read by Hydra and checked against signatures instead (`schema`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from blockyard.config.override_grammar import parse_value
from blockyard.errors import UserError

Reader = Callable[[str], Any]


def read_option(key: str, text: str, reader: Reader) -> Any:
    """Return the value of `key=text`. Raises UserError with the expected form."""
    try:
        return reader(text)
    except ValueError as error:
        raise UserError(f"{key}={text}: expected {error}") from None


def integer(minimum: int = 0, maximum: int | None = None, note: str = "") -> Callable[[str], int]:
    """Return a reader of whole numbers in a range. note: ends the message."""
    limits = f"a whole number >= {minimum}"
    if maximum is not None:
        limits = f"a whole number from {minimum} to {maximum}"

    def read(text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else None
        if value is None or value < minimum or (maximum is not None and value > maximum):
            raise ValueError(limits + note)
        return value

    return read


def number(minimum: float = 0.0, maximum: float = float("inf"), *, exclusive: bool = False) -> Callable[[str], float]:
    """Return a reader of finite numbers in a range; `exclusive` leaves the minimum out."""
    comparison = ">" if exclusive else ">="
    limits = f"a number {comparison} {minimum:g}"
    if maximum < float("inf"):
        limits += f" and <= {maximum:g}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(limits) from None
        above = value > minimum if exclusive else value >= minimum
        if not above or not value <= maximum or value == float("inf"):
            raise ValueError(limits)
        return value

    return read


def one_of(*names: str) -> Callable[[str], str]:
    """Return a reader of one of a few names."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return read


def boolean(text: str) -> bool:
    """Read true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def non_empty(text: str) -> str:
    """Read a text of at least one character."""
    if not text:
        raise ValueError("a text of at least one character")
    return text


def indices(text: str) -> tuple[int, ...]:
    """Read whole numbers such as 0,2 or [0,2] or 0-3, each once."""
    values: list[int] = []
    for part in text.strip("[]() ").split(","):
        ends = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if last < first:
            raise ValueError("whole numbers >= 0, such as 0,2 or 0-3")
        values += range(first, last + 1)
    return tuple(dict.fromkeys(values))


def config_value(text: str) -> Any:
    """Read a value as in a config override: 3, 1e-4, true, null, [a,b], text."""
    try:
        return parse_value(text)
    except ValueError as error:
        raise ValueError(f"a value ({error})") from None
