"""The reader of every command line: overrides and names in any order with flags, one message for a bad flag."""

from __future__ import annotations

import pytest

from blockyard.commands._reader import read
from blockyard.config.option_text import boolean, config_value, indices, integer, number, one_of, read_option
from blockyard.config.override_grammar import parse_allow, parse_override, parse_value
from blockyard.errors import UserError


def test_overrides_keep_their_order_around_flags() -> None:
    arguments = ["quickstart", "--workers", "2", "a=1", "--dry-run", "b=x y", "-cd", "mine"]
    _, positional, values = read("sweep", arguments)
    assert positional == ["quickstart", "a=1", "b=x y"]
    options = values["options"]
    assert (options.workers, options.dry_run, options.retry, values["config_dirs"]) == (2, True, False, ["mine"])
    assert read("sweep", ["quickstart", "--workers=3"])[2]["options"].workers == 3


def test_keys_are_taken_out_of_the_arguments() -> None:
    _, names, values = read("soup", ["a", "out=x=y", "which=best", "b", "which=last", "allow=['one', two]"])
    assert names == ["a", "b"]
    assert values == {"out": "x=y", "which": ["last"], "allow": ("one", "two")}
    _, _, values = read("eval", ["run=x", "extrapolate=[2]", "position.base=10"])
    assert values["position"] == {"base": 10}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--worker", "2"], "--worker: unknown flag; did you mean --workers?"),
        (["--workers"], "--workers: a value is missing"),
        (["--workers", "two"], "--workers: expected a whole number >= 1, not 'two'"),
        (["--retry=1"], "--retry: takes no value"),
        (["--config-dir"], "--config-dir: a value is missing"),
        (["-x"], "-x: unknown flag"),
    ],
)
def test_a_bad_flag_has_one_message(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read("sweep", arguments)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_format_takes_the_next_argument_only_if_it_is_a_file() -> None:
    def compared(*arguments: str) -> tuple[list[str], dict[str, str]]:
        _, positional, keywords = read("compare", arguments)
        return positional, keywords

    assert compared("--csv", "norms") == (["norms"], {"csv": ""})
    assert compared("norms", "--csv", "n.csv", "--html=-") == (["norms"], {"csv": "n.csv", "html": "-"})
    assert compared("--markdown", "-", "outputs=x") == ([], {"markdown": "-", "outputs": "x"})


def test_left_over_options_are_named() -> None:
    with pytest.raises(UserError, match="spilt=a: unknown option of eval; did you mean split"):
        read("eval", ["spilt=a"])


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        (integer(), "12", 12),
        (integer(-5), "-3", -3),
        (number(), "1e-3", 1e-3),
        (boolean, "False", False),
        (indices, "[0,2-4,2]", (0, 2, 3, 4)),
        (one_of("a", "b"), "b", "b"),
        (config_value, "[1, null, x]", [1, None, "x"]),
        (config_value, "1e-3", 1e-3),
        (config_value, "'a b'", "a b"),
    ],
)
def test_options_are_read(reader, text: str, value: object) -> None:
    assert read_option("key", text, reader) == value


@pytest.mark.parametrize(
    ("reader", "text", "expected"),
    [
        (integer(1, 9), "10", "a whole number from 1 to 9"),
        (integer(), "1.0", "a whole number >= 0"),
        (integer(), "", "a whole number >= 0"),
        (number(0, 1, exclusive=True), "0", "a number > 0 and <= 1"),
        (number(), "nan", "a number >= 0"),
        (number(), "inf", "a number >= 0"),
        (boolean, "1", "true or false"),
        (indices, "3-1", "whole numbers >= 0, such as 0,2 or 0-3"),
        (indices, "", "whole numbers >= 0"),
        (one_of("a", "b"), "c", "one of a, b"),
        (config_value, "a,b", "a value ('a,b' is several values; write [a,b] for a list)"),
        (config_value, "[", "a value ("),
    ],
)
def test_bad_options_say_what_is_expected(reader, text: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read_option("key", text, reader)
    assert str(caught.value).startswith(f"key={text}: expected {expected}")


def test_the_grammar_is_hydras() -> None:
    assert parse_override("+a.b=1").value() == 1
    assert parse_value("{a: [1, 2]}") == {"a": [1, 2]}
    with pytest.raises(ValueError, match=r"^[^\n]*$"):
        parse_override("a=[")
    assert parse_allow(None) == []
    assert parse_allow("['mine', \"yours\"]") == ["mine", "yours"]
