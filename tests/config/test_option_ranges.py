"""No option of any choice takes a number that is none, or one below what it can be."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from blockyard.config import schema
from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from blockyard.config.untrusted.targets import locate
from tests.support.helpers import CONF

FAMILIES = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "__pycache__")
NEGATIVE = {"tokenizer.stage", "token_mixer.input_bias"}  # counts as a list in Python does; is in an exponent
WRONG = (math.nan, math.inf, -math.inf, -1.0, -1)


def numbers() -> Iterator[tuple[str, str, schema.Option]]:
    """Every option that takes a number, with the first choice of its class and its key."""
    seen = set()
    for family in FAMILIES:
        for choice in catalog.choices(family).values():
            target = locate(choice.target) if choice.target else None
            for name, option in schema.options(target).items() if target not in (None, *seen) else ():
                if option.problem(1) is None or option.problem(0.5) is None:
                    yield f"{family}={choice.name}", f"{family}.{name}", option
            seen.add(target)


def accepted(key: str, option: schema.Option) -> list[float]:
    """The invalid numbers that an option accepts."""
    return [value for value in WRONG if option.problem(value) is None and not (value == -1 and key in NEGATIVE)]


BY_CHOICE: dict[str, dict[str, schema.Option]] = {}
for of_choice, of_key, of_option in numbers():
    BY_CHOICE.setdefault(of_choice, {})[of_key] = of_option


@pytest.mark.parametrize("choice", BY_CHOICE)
def test_what_is_no_size_is_refused(choice: str) -> None:
    assert {key: wrong for key, option in BY_CHOICE[choice].items() if (wrong := accepted(key, option))} == {}


def test_there_are_numbers_to_ask_about() -> None:
    assert sum(map(len, BY_CHOICE.values())) > 150
    assert {choice.partition("=")[0] for choice in BY_CHOICE} > {
        "position",
        "token_mixer",
        "data",
        "optimizer",
        "schedule",
    }


def test_a_plain_float_is_caught() -> None:
    class Plain:
        def __init__(self, *, std: float | None = None) -> None: ...

    assert accepted("position.std", schema.options(Plain)["std"])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("position=learned position.std=-1", "position.std: invalid value -1: expected number >= 0 or null"),
        ("position=rope position.scaling=linear position.factor=inf", "position.factor: invalid value inf"),
        ("schedule.warmup=inf", "schedule.warmup: invalid value inf"),
    ],
)
def test_check_says_so(overrides: str, says: str) -> None:
    assert any(says in str(issue) for issue in check(compose(overrides.split())))
