"""No regular expression takes longer than a multiple of its text's length: a text may come from a stranger."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.patterns import Place, javascript_patterns, python_patterns, texts

SECONDS = 0.3  # of processor time: a linear pattern takes a thirtieth of it, a quadratic one many times as much

# Patterns that are not linear, with what bounds their texts.
BOUNDED = {
    r"/\*.*?\*/\n?": "style sheets of the package",
    r"\B(?=(\d{3})+$)": "a number as text",
    r"\.?0+e": "a number as text",
}
# Patterns that are made of values, by file and method, with what they are made of.
MADE = {
    ("commands/new.py", "search"): "the name of a class, in templates of the package",
    ("commands/new.py", "sub"): "names of placeholders, in templates of the package",
    ("config/choices/catalog.py", "search"): "a heading, at the start of a line of a docstring",
    ("config/runnable.py", "search"): "a family and a choice, in experiments",
    ("data/mixture.py", "sub"): "names of options",
    ("data/splits/timm_policy.py", "fullmatch"): "a key and a number, or one of three names",
    ("report/render/columns.py", "sub"): "escaped names of arms, and numbers",
    ("sweep/spec/ladder.py", "sub"): "escaped names of arms",
    ("sweep/spec/sweep_yaml.py", "search"): "four patterns of single values, of which none has two repeats in a row",
    ("tokenizer/word.py", "findall"): "two classes of characters",
}


@pytest.fixture(scope="module")
def places() -> list[Place]:
    """The patterns of the project; finding them parses most of it, which takes longer than collecting the tests."""
    return [*python_patterns(), *javascript_patterns()]


class _TooLongError(Exception):
    pass


@contextmanager
def limited() -> Iterator[None]:
    """In this block, raise an error after `SECONDS` of processor time; `re` looks for signals while it matches."""

    def stop(*_: Any) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def slow_text(place: Place) -> Any:
    """Return a text on which a pattern takes too long, or None."""
    compiled = re.compile(place.text, place.flags)  # type: ignore[arg-type]
    arguments = ("",) if place.method in ("sub", "subn") else ()
    for text in texts(place.text, place.flags):
        function = getattr(compiled, "findall" if place.method == "finditer" else place.method)
        try:
            with limited():
                function(*(argument if isinstance(text, str) else argument.encode() for argument in arguments), text)
        except _TooLongError:
            return text
    return None


def test_every_pattern_is_linear(places: list[Place]) -> None:
    assert len(places) > 120
    slow: dict[str, str] = {}
    for place in {(each.text, each.method, each.flags): each for each in places if each.text is not None}.values():
        if place.text not in BOUNDED and (text := slow_text(place)) is not None:
            slow[f"{place.where}: {place.text}"] = f"{text[:60]!r}..."
    assert slow == {}


def test_exceptions_are_those_of_the_project(places: list[Place]) -> None:
    exceptions = {(place.where.partition(":")[0], place.method) for place in places if place.text is None}
    assert exceptions == MADE.keys()
    assert BOUNDED.keys() <= {place.text for place in places}


@pytest.mark.parametrize(
    "text",
    [
        r'(?s)<script[^>]*type="application/json"[^>]*>(.*?)</script>',
        r"\b[a-zA-Z][\w+.-]*://(?:[^/\s:@]+:[^\s?]*)@",
        r"[+-]?\d+\.?\d*$",
        r"(a+)+$",
        r"\s*(>=|<)\s*",
        r"(?:[a-z]+,?)*;",
    ],
)
def test_patterns_that_are_not_linear_are_seen(text: str) -> None:
    assert slow_text(Place("", "search", text)) is not None


@pytest.mark.parametrize("text", [r"[^/]*/", r"\w+", r"(?<!\w)\w+:", r"a{1,40}b"])
def test_patterns_that_are_linear_are_not(text: str) -> None:
    assert slow_text(Place("", "match", text)) is None
