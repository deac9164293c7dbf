"""No option of any choice takes a number that is none, or one below what it can be."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest

from blockyard.config import interpolations, schema
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
        ("data=table data.label=1e3", """invalid value 1000.0: .*(try 'data.label="1e3"')"""),
        ("data=table data.columns=[2020,x]", """invalid value [2020, 'x']: .*(try 'data.columns=["2020","x"]')"""),
        ("name=true", """name: invalid value True: .*(try 'name="true"')"""),
    ],
)
def test_check_says_so(overrides: str, says: str) -> None:
    pattern = re.escape(says).replace(re.escape(".*"), ".*")
    assert any(re.search(pattern, str(issue)) for issue in check(compose(overrides.split())))


def test_what_quotes_make_text_is_accepted() -> None:
    composed = compose(
        ["data=table", 'data.label="1e3"', 'data.columns=["2020","x"]', r"data.path=a\${x:y}/${seed}.csv"]
    )
    assert composed.issues == []
    assert composed.config["data"]["label"] == "1e3"
    assert composed.config["data"]["columns"] == ["2020", "x"]
    assert composed.config["data"]["path"] == "a${x:y}/0.csv"


def test_a_key_that_is_not_there_comes_with_the_way_to_write_it_as_text() -> None:
    (issue,) = compose(["data=table", "data.path=a${x}.csv"]).issues
    assert issue.legal == [r"'data.path=a\${x}.csv'"]
    # Inside an interpolation a backslash hides none, and of two the second stands for itself.
    for value in (r"${oc.env:NONE,\${b}}", r"\\${b:c}"):
        (issue,) = interpolations.problems({"a": value, "b": 1})
        assert "is not allowed" in issue.text
    assert not list(interpolations.problems({"a": r"\\\${b:c} \${a}"}))
