"""Reads a sweep file in a strict subset of YAML.

Values mean the same as on the command line: `3e-4` is a number, `on`, `no` and 12:30 are texts.
`atomic_files.strict_yaml` defines the subset.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from blockyard.atomic_files.strict_yaml import Limits, StrictLoader, StrictYamlError, load_mapping, read_text


class SweepLoader(StrictLoader):
    """YAML 1.2's core schema. Keys stay text: an arm or a level may be called 5e-4."""

    limits = Limits(size=1_000_000, depth=12)
    any_key = True
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - filled below, apart from those of YAML 1.1

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping with keys as they are written in the file."""
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}


def read(path: Path) -> dict[str, Any]:
    """Return the mapping in a file. Raises StrictYamlError."""
    try:
        text = read_text(path, SweepLoader.limits)
    except OSError as error:
        raise StrictYamlError(f"cannot be read: {error.strerror}") from error
    return parse(text)


def parse(text: str) -> dict[str, Any]:
    """Return the mapping in a text. Raises StrictYamlError."""
    value = load_mapping(text, SweepLoader)
    if value is None:
        raise StrictYamlError("is empty")
    return value


def header(path: Path) -> str:
    """Return the comment lines at the top of a file, without their `#`."""
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    comments = []
    for line in lines:
        if not line.startswith("#"):
            break
        comments.append(line[1:].removeprefix(" ").rstrip())
    return "\n".join(comments)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]{0,18})", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?|[-+]?\.(?:inf|nan)", "-+0123456789."),
):
    SweepLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))
SweepLoader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
# Python writes YAML's .inf and .nan without the dot.
SweepLoader.add_constructor(
    "tag:yaml.org,2002:float", lambda _, node: float(node.value.replace(".inf", "inf").replace(".nan", "nan"))
)
