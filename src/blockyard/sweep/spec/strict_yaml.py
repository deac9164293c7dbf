"""Reading a sweep file: YAML as people write it, and nothing else of YAML.

Words mean what they mean on the command line: `3e-4` is a number, `on` and `no` are words, 12:30 is no
number. No aliases (a few of them stand for billions of nodes), no tags, no key twice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

LARGEST = 1_000_000  # bytes
DEEPEST = 12  # levels of nesting


class Unreadable(ValueError):  # noqa: N818 - what it is, for who catches it
    """The file is no YAML that is read here; the message says where and why."""


def read(path: Path) -> dict[str, Any]:
    """The mapping in a file. Raises Unreadable."""
    try:
        if path.stat().st_size > LARGEST:
            raise Unreadable(f"{path.stat().st_size:,} bytes; a question takes no more than {LARGEST:,}")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"is no text ({error.reason} at byte {error.start})") from error
    return parse(text)


def parse(text: str) -> dict[str, Any]:
    """The mapping in a text. Raises Unreadable."""
    try:
        value = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Unreadable(f"{where}{error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(" ".join(str(error).split()) or type(error).__name__) from error
    if value is None:
        raise Unreadable("is empty")
    if not isinstance(value, dict):
        raise Unreadable(f"holds a {type(value).__name__}, not `key: value` lines")
    return value


def header(path: Path) -> str:
    """The comment lines that open a file, without their signs."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    found = []
    for line in lines:
        if not line.startswith("#"):
            break
        found.append(line[1:].removeprefix(" ").rstrip())
    return "\n".join(found)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core words."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.MarkedYAMLError(
                problem=f"*{event.anchor}: aliases are not read; write it out", problem_mark=event.start_mark
            )
        event = self.peek_event()
        if event.tag is not None:
            raise yaml.MarkedYAMLError(
                problem=f"{event.tag}: tags are not read; write the value alone", problem_mark=event.start_mark
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
                raise yaml.MarkedYAMLError(problem="a key must be one word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands here twice", problem_mark=key.start_mark)
            seen.add(key.value)
        # A key is what is written: an arm or a level may be called 5e-4.
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
_Loader.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(_spelled(node.value)))


def _spelled(text: str) -> str:
    return text.replace(".inf", "inf").replace(".nan", "nan") if "n" in text else text
