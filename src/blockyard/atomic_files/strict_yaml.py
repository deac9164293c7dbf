"""Reads YAML that may come from a stranger. Harmful content is refused, in the same words wherever YAML is read.

Refused before anything is constructed: large files, text that is not UTF-8, several documents, tags, deep nesting,
aliases (a few of which can expand to billions of values), keys that are not text, and keys that are defined twice.
The loader decides the meaning of a plain value: a subclass may follow YAML 1.1, YAML 1.2 or OmegaConf.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml

from blockyard.atomic_files.replace import read_bytes

_LENIENT = ("\t", "\ufeff", "|#", ">#", "? ")  # libyaml accepts some of these where PyYAML does not
_STR, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class StrictYamlError(ValueError):
    """A text is not YAML of this strict form. The message says where and why, and does not name the file."""


@dataclass(frozen=True)
class Limits:
    """Upper bounds of a file.

    size: bytes
    depth: levels of nesting
    aliases: number of aliases; 0 if they are not allowed
    values: number of values with all aliases expanded; only of files that may have aliases
    """

    size: int
    depth: int
    aliases: int = 0
    values: int = 0


class StrictLoader(yaml.SafeLoader):
    """YAML 1.1 of plain values within limits.

    any_key: whether a key such as 1 or true is allowed; a subclass that constructs mappings reads it as text
    """

    limits: ClassVar = Limits(size=4_000_000, depth=100)
    any_key: ClassVar = False
    depth = aliases = 0

    def compose_document(self) -> Any:
        """Compose the only document."""
        document = super().compose_document()
        if not self.check_event(yaml.StreamEndEvent):
            _refuse("has a second document; only one is read", self.peek_event().start_mark)
        return document

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node that is an allowed alias, or has no tag and is not nested too deep."""
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            self.aliases += 1
            if not self.limits.aliases:
                _refuse(f"*{event.anchor}: aliases are not allowed; repeat the value", event.start_mark)
            if self.aliases > self.limits.aliases:
                _refuse(f"too many aliases; at most {self.limits.aliases} are allowed", event.start_mark)
        elif event.tag is not None:
            _refuse(f"{event.tag}: tags are not allowed; write the value alone", event.start_mark)
        self.depth += 1
        if self.depth > self.limits.depth:
            _refuse(f"nested more than {self.limits.depth} levels deep", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Compose a mapping with keys of text, each defined once."""
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                _refuse("a key must be a plain text", key.start_mark)
            if key.tag == _MERGE and not self.any_key:
                continue
            if key.tag != _STR and not self.any_key:
                _refuse(f"the key {key.value!r} is not text; write it in quotes", key.start_mark)
            if key.value in keys:
                _refuse(f"{key.value!r} is defined twice", key.start_mark)
            keys.add(key.value)
        return node


def read_text(path: Path, limits: Limits) -> str:
    """Return the text of a regular file. Raises StrictYamlError, and OSError for a file that cannot be read."""
    size = path.stat().st_size
    if size > limits.size:
        raise StrictYamlError(f"has {size:,} bytes, at most {limits.size:,} are read")
    try:
        return read_bytes(path, limits.size).decode("utf-8")
    except UnicodeDecodeError as error:
        raise StrictYamlError(f"is not UTF-8 text ({error.reason} at byte {error.start})") from error


def load(text: str, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Return the content of a text. Raises StrictYamlError."""
    try:
        content = _content(text, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise StrictYamlError(f"{where}{error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise StrictYamlError(" ".join(str(error).split()) or type(error).__name__) from error
    if loader.limits.aliases and _exceeds(content, loader.limits.values):
        raise StrictYamlError(f"has more than {loader.limits.values:,} values with its aliases expanded")
    return content


def load_mapping(text: str, loader: type[StrictLoader] = StrictLoader) -> dict[str, Any] | None:
    """Return the mapping in a text; None if it is empty. Raises StrictYamlError."""
    content = load(text, loader)
    if content is not None and not isinstance(content, dict):
        raise StrictYamlError(f"holds a {type(content).__name__}, not `key: value` lines")
    return content


def _content(text: str, loader: type[StrictLoader]) -> Any:
    """Return the value that a loader constructs, from libyaml's events if PyYAML was built with it: six times as fast.

    A text that libyaml or the loader refuses is read again by PyYAML's own parser, for its clearer messages. A text
    that libyaml alone accepts is read by PyYAML's.
    """
    compiled: Any = _compiled(loader)  # type: ignore[arg-type]  # mypy doubts that a class is hashable
    if compiled is not None and not any(part in text for part in _LENIENT):
        try:
            return yaml.load(text, Loader=compiled)
        except (yaml.YAMLError, ValueError, TypeError, RecursionError):
            pass
    return yaml.load(text, Loader=loader)


@cache
def _compiled(loader: type[StrictLoader]) -> type[StrictLoader] | None:
    """Return the loader with libyaml's scanner and parser in place of PyYAML's; None without libyaml."""
    if not yaml.__with_libyaml__:
        return None
    from yaml.cyaml import CParser  # type: ignore[import-untyped]

    class Compiled(loader):  # type: ignore[valid-type, misc]
        def __init__(self, stream: str) -> None:
            self._events = CParser(stream)
            self.check_event = self._events.check_event
            self.peek_event = self._events.peek_event
            self.get_event = self._events.get_event
            yaml.composer.Composer.__init__(self)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

        def dispose(self) -> None:
            self._events.dispose()

    return Compiled


def _refuse(problem: str, mark: Any) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _exceeds(content: Any, limit: int) -> bool:
    """Return whether there are more values than `limit`, without counting further."""
    count, stack = 0, [content]
    while stack and count <= limit:
        value = stack.pop()
        count += 1
        if isinstance(value, dict):
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return count > limit
