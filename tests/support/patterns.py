"""The regular expressions of the project, and texts on which one that is not linear takes too long.

A pattern is fed texts of its own pieces: what each run of neighbouring items matches, repeated, and what each repeated
item matches, repeated behind what comes before it; each followed by something that fails.
"""

from __future__ import annotations

import ast
import importlib
import re
import re._constants as sre
import re._parser as parser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

PACKAGE = ROOT / "src" / "blockyard"
FUNCTIONS = ("search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split")
LENGTH = 60_000  # characters: a quadratic pattern makes 10^9 steps or more
_SAMPLES = "aZ0_-.:/ ='\"\n\t~@{}()<>,;*+^$\\é\x00"


@dataclass(frozen=True)
class Place:
    """A pattern in a file. method: how it is applied; text: the pattern, None where it depends on values"""

    where: str
    method: str
    text: str | None
    flags: int = 0


def python_patterns() -> Iterator[Place]:
    """Yield the patterns of all modules of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if re.search(r"\bre\.", source):
            yield from _of_module(path, source)


def _of_module(path: Path, source: str) -> Iterator[Place]:
    name = ".".join(("blockyard", *path.relative_to(PACKAGE).with_suffix("").parts))
    tree = ast.parse(source)
    names = {
        node.value: node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "re":
            continue
        where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
        text = _literal(node.args[0]) if node.args else None
        if node.func.attr in FUNCTIONS:
            yield Place(where, node.func.attr, text, _flags(node))
        elif node.func.attr == "compile":
            variable = names.get(node, "")
            flags = _flags(node)
            if text is None and node in [getattr(each, "value", None) for each in tree.body]:
                compiled = getattr(importlib.import_module(name), variable)
                text, flags = compiled.pattern, compiled.flags & ~re.UNICODE
            used = re.findall(rf"\b{variable}\.({'|'.join(FUNCTIONS)})\(", source) if variable else []
            for method in sorted(set(used)) or ["search"]:
                yield Place(where, method, text, flags)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _flags(call: ast.Call) -> int:
    names = [each.attr for each in ast.walk(call) if isinstance(each, ast.Attribute) and each.attr.isupper()]
    return int(sum({re.RegexFlag[name] for name in names if name in re.RegexFlag.__members__}))


_JAVASCRIPT = re.compile(r"/((?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+)/([gimsuy]*)\.(?:test|exec)\(")
_JAVASCRIPT_ARGUMENT = re.compile(
    r"\.(?:replace|split|match|matchAll)\(/((?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+)/([gimsuy]*)"
)


def javascript_patterns() -> Iterator[Place]:
    """Yield the literal patterns of the pages' scripts."""
    for path in sorted(PACKAGE.rglob("*.js")):
        source = path.read_text(encoding="utf-8")
        for number, line in enumerate(source.splitlines(), start=1):
            for match in (*_JAVASCRIPT.finditer(line), *_JAVASCRIPT_ARGUMENT.finditer(line)):
                flags = {"i": re.I, "m": re.M, "s": re.S}
                pattern_flags = int(sum(flags.get(flag, 0) for flag in match[2]))
                yield Place(f"{path.relative_to(PACKAGE)}:{number}", "search", match[1], pattern_flags)


# Texts that take long.


def texts(pattern: Any, flags: int, length: int = LENGTH) -> Iterator[Any]:
    """Yield texts of `length` characters on which a pattern backtracks, if it does."""
    yielded: set[tuple[str, str]] = set()
    items = list(parser.parse(pattern, flags))
    if not any(map(_repeats, items)):
        return
    for before, repeated in _repeated_parts(items):
        if (before, repeated) in yielded:
            continue
        yielded.add((before, repeated))
        for end in ("", "\x00"):
            text = before + repeated * (length // len(repeated)) + end
            yield text.encode("latin-1", "replace") if isinstance(pattern, bytes) else text


def _repeated_parts(items: list[Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield pairs of a text that stands once and one that is repeated behind it."""
    samples = _samples_of(items)
    for start in range(len(samples)):
        for end in range(start + 1, min(len(samples), start + 5) + 1):
            if repeated := "".join(samples[start:end]):
                yield "", repeated
                yield before + "".join(samples[:start]), repeated
    lead = before
    for kind, value in items:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT) and len(value[2]) == 1:
            admitted = [each for each in _SAMPLES if value[2][0][0] is sre.IN and _admits(value[2][0], each)]
            yield from ((lead, "a" + each) for each in admitted if admitted[0] == "a")
        for inner in _inner(kind, value):
            if any(_repeats(item) for item in inner) or kind is not sre.BRANCH:
                yield from _repeated_parts(list(inner), lead)
        lead += _sample((kind, value))


def _samples_of(items: list[Any]) -> list[str]:
    """A text for each item; neighbouring letters are one text."""
    samples: list[str] = []
    literal = False
    for item in items:
        joins = literal and item[0] is sre.LITERAL
        if joins:
            samples[-1] += _sample(item)
        else:
            samples.append(_sample(item))
        literal = item[0] is sre.LITERAL
    return samples


def _repeats(item: Any) -> bool:
    """Whether an item has a repeat without a bound."""
    kind, value = item
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[1] is sre.MAXREPEAT:
        return True
    return any(_repeats(each) for inner in _inner(kind, value) for each in inner)


def _inner(kind: Any, value: Any) -> list[Any]:
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        return [value[2]]
    if kind is sre.SUBPATTERN:
        return [value[3]]
    if kind is sre.ATOMIC_GROUP:
        return [value]
    if kind is sre.BRANCH:
        return list(value[1])
    if kind in (sre.ASSERT, sre.ASSERT_NOT):
        return [value[1]]
    return []


def _sample(item: Any) -> str:
    """A text that an item matches, as short as one may be that is not empty."""
    kind, value = item
    if kind is sre.LITERAL:
        return chr(value)
    if kind is sre.ANY:
        return "a"
    if kind in (sre.NOT_LITERAL, sre.IN):
        return next((each for each in _SAMPLES if _admits(item, each)), "")
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        low, _, inner = value
        return "".join(map(_sample, inner)) * max(1, low)
    if kind is sre.SUBPATTERN:
        return "".join(map(_sample, value[3]))
    if kind is sre.ATOMIC_GROUP:
        return "".join(map(_sample, value))
    if kind is sre.BRANCH:
        return next((text for branch in value[1] if (text := "".join(map(_sample, branch)))), "")
    return ""


def _admits(item: Any, character: str) -> bool:
    state = parser.State()
    state.str = ""
    compiled = re._compiler.compile(parser.SubPattern(state, [item]))  # type: ignore[attr-defined]
    return bool(compiled.fullmatch(character))
