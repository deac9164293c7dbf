"""The reader of every command line: overrides and names in any order with flags, one message for a bad flag."""

from __future__ import annotations

import pytest

from blockyard.commands._args import Args, Parser, read
from blockyard.commands._sweep_args import SweepArgs, parser
from blockyard.commands.compare import CompareArgs, _with_files
from blockyard.commands.compare import parser as compare_parser
from blockyard.config.option_text import boolean, config_value, indices, integer, number, one_of, read_option
from blockyard.config.override_grammar import allowed_packages, parse_allow, parse_override, parse_value
from blockyard.errors import UserError


def test_overrides_keep_their_order_around_flags() -> None:
    args = parser().read(["quickstart", "--workers", "2", "a=1", "--dry-run", "b=x y", "-cd", "mine"], SweepArgs)
    assert args.overrides == ["quickstart", "a=1", "b=x y"]
    assert (args.workers, args.dry_run, args.retry, args.config_dirs) == (2, True, False, ["mine"])
    assert parser().read(["--workers=3"], SweepArgs).workers == 3


def test_options_are_taken_out_of_the_overrides() -> None:
    args = read("eval", ["outputs", "run=a", "run=b", "position.base=10", "allow=['one', two]", "outputs=x=y"])
    assert args.pop("run") == "b"
    assert args.pop("run", "none") == "none"
    assert args.pop_prefix("position.") == {"base": "10"}
    assert args.pop_allow() == ["one", "two"]
    assert args.pop("outputs") == "x=y"
    assert args.overrides == ["outputs"]  # a name, without a value
    assert args.pop_names() == ["outputs"]
    args.check_empty("eval", ("run",))


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
        parser().read(arguments, SweepArgs)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_format_takes_the_next_argument_only_if_it_is_a_file() -> None:
    def compared(*arguments: str) -> CompareArgs:
        return compare_parser().read(_with_files(arguments), CompareArgs)

    assert compared("--csv", "norms").files() == {"--csv": ""}
    assert compared("--csv", "norms").overrides == ["norms"]
    assert compared("norms", "--csv", "n.csv", "--html=-").files() == {"--csv": "n.csv", "--html": "-"}
    assert compared("--markdown", "-", "outputs=x").files() == {"--markdown": "-"}


def test_left_over_options_are_named() -> None:
    with pytest.raises(UserError, match="spilt=a: unknown option of eval; did you mean split"):
        Parser("eval").read(["spilt=a"], Args).check_empty("eval", ("run", "split"))


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
    assert allowed_packages([("seed", "1"), ("allow", "[mine]")]) == ["mine"]
