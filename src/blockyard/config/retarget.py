"""`callbacks.NAME._target_=...` and `logger._target_=...` on the command line: a class without a YAML of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

FAMILIES = ("callbacks", "logger")  # used alongside the model; the choices of other families are the files in conf/
_SUFFIX = "._target_"


def retargeted(values: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The nodes of these families that get another class, by dotted key."""
    targets = {key.removesuffix(_SUFFIX): value.strip("'\"") for key, value in values if key.endswith(_SUFFIX)}
    depth = {"callbacks": 2, "logger": 1}
    return {key: target for key, target in targets.items() if key.count(".") + 1 == depth.get(key.partition(".")[0])}


def retarget(tree: dict[str, Any], values: list[tuple[str, str]], *, keep_typed: bool = False) -> None:
    """Give nodes their new class in place, without the options of the former one.

    keep_typed: the tree has the options of `values` already; those stay
    """
    for key, target in retargeted(values).items():
        family, _, name = key.partition(".")
        parent, own = (tree, family) if not name else (tree.setdefault(family, {}), name)
        node = parent.get(own) or {}
        typed = {part for option, _ in values if (part := option.removeprefix(f"{key}.").partition(".")[0]) != option}
        kept = {option: value for option, value in node.items() if keep_typed and option in typed}
        parent[own] = {**kept, "_target_": target}
