"""Names for arms that no sweep named: what their configs differ in, as one would type it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockyard.config import dotted
from blockyard.runs.identity import semantic

LONGEST = 72  # characters of a name


@dataclass(frozen=True)
class Kind:
    """A config that some runs share. choices: the YAML of each family."""

    config: Mapping[str, Any]
    choices: Mapping[str, str | None]


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of nested mappings; empty mappings are left out."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def meaning(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flat part of a config that changes what is computed. Imports nothing beside the shipped packages."""
    return flatten(semantic({**config, "allow": []}))


def choice(kind: Kind, family: str) -> str | None:
    """The choice of a family as one types it: the YAML's name, else that of the class's file."""
    named = kind.choices.get(family)
    if named:
        return str(named)
    node = kind.config.get(family)
    target = str(node.get("_target_", "")) if isinstance(node, Mapping) else ""
    return target.split(".")[-2] if target.count(".") else None


def factors(kinds: Mapping[str, Kind]) -> dict[str, dict[str, Any]]:
    """What differs: key -> {name of the kind: value}; a family's choice goes before its options.

    An option that only some choices have is named only where kinds of one choice differ in it.
    """
    flat = {name: meaning(kind.config) for name, kind in kinds.items()}
    keys = list(dict.fromkeys(key for found in flat.values() for key in found))
    differ = [key for key in keys if len({_word(found.get(key)) for found in flat.values()}) > 1]
    made: dict[str, dict[str, Any]] = {}
    families = dict.fromkeys(key.partition(".")[0] for key in differ)
    for family in families:
        inside = [key for key in differ if key.partition(".")[0] == family]
        picks = {name: choice(kind, family) for name, kind in kinds.items()}
        if len(set(picks.values())) > 1:
            made[family] = dict(picks)
            inside = [key for key in inside if not key.endswith("_target_") and _splits(key, flat, picks)]
        for key in inside:
            full = {name: dotted.get(kind.config, key) for name, kind in kinds.items()}
            made[key] = {name: value for name, value in full.items() if value is not dotted.ABSENT}
    return made


def names(kinds: Mapping[str, Kind]) -> dict[str, str]:
    """A readable name for each kind, unique among them: `block=post_norm optimizer.lr=0.001`."""
    found = factors(kinds)
    words = {
        name: [f"{key}={_word(values[name])}" for key, values in found.items() if name in values] for name in kinds
    }
    made = {name: " ".join(parts) or str(kinds[name].config.get("name") or name) for name, parts in words.items()}
    taken: dict[str, str] = {}
    for name, text in made.items():
        short = text if len(text) <= LONGEST else f"{text[: LONGEST - 12].rstrip()}... {name[-8:]}"
        taken[name] = short if short not in taken.values() else f"{short} ({name})"
    return taken


def show(value: Any) -> str:
    """A config value as one types it."""
    return _word(value)


def _splits(key: str, flat: Mapping[str, Mapping[str, Any]], picks: Mapping[str, str | None]) -> bool:
    """Whether kinds of one and the same choice differ in an option."""
    by_choice: dict[str | None, set[str]] = {}
    for name, found in flat.items():
        by_choice.setdefault(picks[name], set()).add(_word(found.get(key)))
    return any(len(values) > 1 for values in by_choice.values())


def _word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_word, value))}]"
    return str(value)
