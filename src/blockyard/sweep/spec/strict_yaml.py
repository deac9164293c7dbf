"""Reads a sweep file in a strict subset of YAML.

Values mean the same as on the command line: `3e-4` is a number, `on`, `no` and 12:30 are texts. Aliases
(a few of them can expand to billions of nodes), tags and duplicate keys are errors.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

LARGEST = 1_000_000  # bytes
DEEPEST = 12  # levels of nesting


class UnreadableError(ValueError):
    """The file is not valid in this subset of YAML; the message says where and why."""


def read(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises UnreadableError."""
    try:
        if path.stat().st_size > LARGEST:
            raise UnreadableError(f"{path.stat().st_size:,} bytes; a sweep file has at most {LARGEST:,}")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"is not UTF-8 text ({error.reason} at byte {error.start})") from error
    return parse(text)


def parse(text: str) -> dict[str, Any]:
    """The mapping in a text. Raises UnreadableError."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UnreadableError(f"{where}{error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UnreadableError(" ".join(str(error).split()) or type(error).__name__) from error
    if value is None:
        raise UnreadableError("is empty")
    if not isinstance(value, dict):
        raise UnreadableError(f"holds a {type(value).__name__}, not `key: value` lines")
    return value


def header(path: Path) -> str:
    """The comment lines at the top of a file, without their `#`."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    comments = []
    for line in lines:
        if not line.startswith("#"):
            break
        comments.append(line[1:].removeprefix(" ").rstrip())
    return "\n".join(comments)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema, without aliases, tags and duplicate keys."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.MarkedYAMLError(
                problem=f"*{event.anchor}: aliases are not allowed; repeat the value", problem_mark=event.start_mark
            )
        event = self.peek_event()
        if event.tag is not None:
            raise yaml.MarkedYAMLError(
                problem=f"{event.tag}: tags are not allowed; write the value alone", problem_mark=event.start_mark
            )
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"nested more than {DEEPEST} levels deep", problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a plain text", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is defined twice", problem_mark=key.start_mark)
            seen.add(key.value)
        # Keys stay text: an arm or a level may be called 5e-4.
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,18})", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.?[0-9]*)(?:[eE][-+]?[0-9]{1,4})?|[-+]?\.(?:inf|nan)", "-+0123456789."),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(_python_float(node.value)))


def _python_float(text: str) -> str:
    return text.replace(".inf", "inf").replace(".nan", "nan") if "n" in text else text
