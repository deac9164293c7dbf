"""Sweep files as YAML: hostile ones, files that are no text, and values as on the command line."""

from __future__ import annotations

import pytest

from blockyard.atomic_files.strict_yaml import StrictYamlError
from blockyard.sweep.spec import sweep_yaml
from blockyard.sweep.spec.question import BadQuestionError, read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x [1]\nb: *x", "*x: aliases are not allowed"),
        ("a: &a [*a]", "aliases are not allowed"),
        ("a: 1\na: 2", "line 2, column 1: 'a' is defined twice"),
        ("a: !!python/object/apply:os.system [ls]", "python/object/apply:os.system: tags are not allowed"),
        ("a: !!bool maybe", "line 1, column 4: tag:yaml.org,2002:bool: tags are not allowed"),
        ("a: !!timestamp x", "tags are not allowed"),
        ("a: !!map [1]", "tags are not allowed"),
        ("[1, 2]", "holds a list"),
        ("", "is empty"),
        ("a: [", "line 1"),
        ("? [a]\n: b", "a key must be a plain text"),
        ("a: " + "[" * 50 + "]" * 50, "nested more than"),
        ("[" * 100_000, "nested more than"),
    ],
)
def test_hostile_yaml(text, message):
    with pytest.raises(StrictYamlError, match=None) as caught:
        sweep_yaml.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a: \x00", b"a" * 2_000_000])
def test_files_that_are_no_text(tmp_path, content):
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(BadQuestionError, match=r"x\.yaml"):
        read(tmp_path / "x.yaml")


def test_values_mean_the_same_as_on_the_command_line():
    read_ = sweep_yaml.parse(
        "a: 3e-4\nb: on\nc: 12:30\nd: 0x1f\ne: 2020-01-01\nf: {5e-4: 1, 1: 2, true: 3}\ng: ~\nh: .5"
    )
    assert read_ == {
        "a": 3e-4,
        "b": "on",
        "c": "12:30",
        "d": "0x1f",
        "e": "2020-01-01",
        "f": {"5e-4": 1, "1": 2, "true": 3},
        "g": None,
        "h": 0.5,
    }
