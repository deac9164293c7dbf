"""No option of any choice takes a number that is none, or one below what it can be."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from blockyard.config import catalog, schema
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.config.targets import locate
from tests.helpers import CONF

FAMILIES = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "__pycache__")
FROM_THE_END = {"tokenizer.stage"}  # counts as a list in Python does
WRONG = (math.nan, math.inf, -math.inf, -1.0, -1)


def numbers() -> Iterator[tuple[str, schema.Option]]:
    """Every option that takes a number, by the key of its first choice."""
    seen = set()
    for family in FAMILIES:
        for choice in catalog.choices(family).values():
            target = locate(choice.target) if choice.target else None
            for name, option in schema.options(target).items() if target not in (None, *seen) else ():
                if option.problem(1) is None or option.problem(0.5) is None:
                    yield f"{family}={choice.name} {family}.{name}", option
            seen.add(target)


@pytest.mark.parametrize(("key", "option"), [pytest.param(*each, id=each[0]) for each in numbers()])
def test_what_is_no_size_is_refused(key: str, option: schema.Option) -> None:
    taken = [value for value in WRONG if option.problem(value) is None]
    if key.split()[-1] in FROM_THE_END:
        assert taken == [-1]
    else:
        assert taken == []


def test_there_are_numbers_to_ask_about() -> None:
    keys = [key for key, _ in numbers()]
    assert len(keys) > 150
    assert {key.partition("=")[0] for key in keys} > {"position", "token_mixer", "data", "optimizer", "schedule"}


def test_a_plain_float_is_caught() -> None:
    class Plain:
        def __init__(self, *, std: float | None = None) -> None: ...

    with pytest.raises(AssertionError):
        test_what_is_no_size_is_refused("position=plain position.std", schema.options(Plain)["std"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("position=learned position.std=-1", "position.std: invalid value -1: expected number >= 0 or null"),
        ("position=rope position.scaling=linear position.factor=inf", "position.factor: invalid value inf"),
        ("schedule.warmup=inf", "schedule.warmup: invalid value inf"),
    ],
)
def test_check_says_so(words: str, says: str) -> None:
    assert any(says in str(issue) for issue in check(compose(words.split())))
