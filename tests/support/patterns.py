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
        if "re." in source:
            yield from _of_module(path, source)


def _of_module(path: Path, source: str) -> Iterator[Place]:
    name = ".".join(("blockyard", *path.relative_to(PACKAGE).with_suffix("").parts))
    tree = ast.parse(source)
    assigned = {
        node.value: target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if not isinstance(node.func.value, ast.Name) or node.func.value.id != "re":
            continue
        where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
        if node.func.attr == "compile" and node in assigned:
            compiled = getattr(importlib.import_module(name), assigned[node])
            used = re.findall(rf"\b{assigned[node]}\.({'|'.join(FUNCTIONS)})\(", source)
            for method in sorted(set(used)) or ["search"]:
                yield Place(where, method, compiled.pattern, compiled.flags & ~re.UNICODE)
        elif node.func.attr in (*FUNCTIONS, "compile"):
            yield Place(where, node.func.attr, _literal(node.args[0]), _flags(node))


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
            for found in (*_JAVASCRIPT.finditer(line), *_JAVASCRIPT_ARGUMENT.finditer(line)):
                flags = {"i": re.I, "m": re.M, "s": re.S}
                given = int(sum(flags.get(flag, 0) for flag in found[2]))
                yield Place(f"{path.relative_to(PACKAGE)}:{number}", "search", found[1], given)


# Texts that take long.


def texts(pattern: Any, flags: int, length: int = LENGTH) -> list[Any]:
    """Return texts of `length` characters on which a pattern backtracks, if it does."""
    items = list(parser.parse(pattern, flags & ~re.DEBUG))
    pieces = list(dict.fromkeys(_pieces(items)))
    found: dict[str, None] = {}
    for before, piece in pieces:
        for end in ("", "\n", "\x00", "!"):
            found[before + piece * (length // len(piece)) + end] = None
    kept = list(found)
    return [text.encode("latin-1", "replace") for text in kept] if isinstance(pattern, bytes) else kept


def _pieces(items: list[Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield pairs of a text that stands once and one that is repeated behind it."""
    samples = [_sample(item) for item in items]
    for start in range(len(items)):
        for end in range(start + 1, min(len(items), start + 12) + 1):
            if piece := "".join(samples[start:end]):
                yield "", piece
                yield before + "".join(samples[:start]), piece
    for number, (kind, value) in enumerate(items):
        lead = before + "".join(samples[:number])
        for inner in _inner(kind, value):
            yield from _pieces(list(inner), lead)


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
