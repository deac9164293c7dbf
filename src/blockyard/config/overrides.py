"""Judging overrides one by one: each names a choice or an option that somebody reads, or says why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.config import catalog, size_matching
from blockyard.config.schema import RESERVED, Root, allowed, locate, options
from blockyard.contracts import Issue
from blockyard.errors import near

MULTIRUN_KEYS = ("hydra.searchpath", "hydra.verbose", "hydra.sweep.", "hydra.sweeper.", "hydra.launcher.")
MULTIRUN_GROUPS = ("hydra/launcher", "hydra/sweeper")


@dataclass
class Sorted:
    """Overrides by kind: choices, options as (dotted key, value as written), Hydra's own."""

    groups: list[str] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)  # dotted key, value as written
    hydra: list[str] = field(default_factory=list)


def sort_overrides(
    words: Sequence[str], folders: tuple[Path, ...], issues: list[Issue], multirun: bool = False
) -> Sorted:
    """Overrides by kind; what cannot be one becomes an issue. Of several values the first stands for all."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, sorted_ = OverridesParser.create(), Sorted()
    for text in words:
        key, _, value = text.partition("=")
        name = key.lstrip("+~")
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            reason = "no value given" if "=" not in text else str(error).splitlines()[0]
            legal = ["key=value", "'key=\"text with = or ,\"'"]
            issues.append(Issue(name, f"{text!r} cannot be read ({reason})", legal))
            continue
        values = _values(override)
        swept = override.is_sweep_override()
        if (swept or len(values) != 1) and not multirun:
            issues.append(Issue(name, f"{value!r} names several values; one run takes one", [f"-m {text}"]))
        elif override.is_delete():
            issues.append(Issue(name, "cannot be deleted; every family has one choice and every option a value"))
        elif name.startswith("hydra"):
            _sort_hydra(name, text, sorted_, issues, multirun)
        elif name in catalog.families():
            good = [_choice(name, key, each, folders, issues) for each in values]
            if good and all(good):
                if values[0] is None:  # none is what there is without a word
                    sorted_.groups = [word for word in sorted_.groups if not word.startswith(f"{name}=")]
                else:
                    sorted_.groups.append(f"{name}={values[0]}")
        elif "/" in name or "@" in name:
            hint = _slash_hint(name, value) or near(name.replace("@", "/").split("/")[0], catalog.families())
            issues.append(Issue(name, "is no family of choices", hint))
        elif values:
            sorted_.values.append((name, next(override.sweep_string_iterator()) if swept else value))
    return sorted_


def _values(override: Any) -> list[Any]:
    """The values an override names: one, several (`a,b`), or none known without looking (glob, range)."""
    from hydra.core.override_parser.types import ChoiceSweep

    if not override.is_sweep_override():
        return [override.value()]
    swept = override.value()
    return [getattr(each, "text", each) for each in swept.list] if isinstance(swept, ChoiceSweep) else []


def _sort_hydra(name: str, text: str, sorted_: Sorted, issues: list[Issue], multirun: bool) -> None:
    if name == "hydra.searchpath" and text.startswith("+"):
        issues.append(Issue(name, f"write it without the sign: {text.lstrip('+')}"))
    elif name == "hydra.searchpath":
        sorted_.hydra.append(text)
    elif not name.startswith(MULTIRUN_KEYS) and name not in MULTIRUN_GROUPS:
        legal = [*MULTIRUN_GROUPS, *(key.rstrip(".") for key in MULTIRUN_KEYS)]
        issues.append(Issue(name, "is not open to overrides", legal))
    elif not multirun:
        issues.append(Issue(name, "has a say over several runs only", [f"-m {text}"]))


def _choice(family: str, key: str, value: Any, folders: tuple[Path, ...], issues: list[Issue]) -> bool:
    names = catalog.choices(family, folders)
    if key != family:
        issues.append(Issue(family, f"write it without the sign: {family}={value}"))
        return False
    if value is None and family in ("experiment", "preset"):
        return True
    if isinstance(value, str) and value in names:
        return True
    nearest = near(str(value), names)
    said = f"{value!r} is no choice" + (f"; nearest: {nearest[0]}" if nearest else "")
    issues.append(Issue(family, said, list(names)))
    return False


def _slash_hint(name: str, value: str) -> list[str]:
    family, _, rest = name.replace("@", "/").partition("/")
    if family not in catalog.families():
        return []
    picked = next((word for word in (rest, value) if word in catalog.choices(family)), None)
    return [f"{family}={picked}"] if picked else [f"{family}.{rest}={value}"]


def known(
    key: str, value: str, base: dict[str, Any], allow: list[str], folders: tuple[Path, ...], issues: list[Issue]
) -> bool:
    """Whether a value override names an option that somebody reads."""
    path = key.split(".")
    if path[0] in catalog.BESIDE:
        issues.append(Issue(key, "is no part of a run; `blockyard sweep` takes it"))
        return False
    if len(path) == 1:
        if key in options(Root):
            return True
        everywhere = [f"{name}.{o}" for name, node in nodes(base) for o in _options(node, allow) if o == key]
        issues.append(
            Issue(key, "nothing reads this key", everywhere or near(key, [*options(Root), *catalog.families()]))
        )
        return False
    if path[0] == size_matching.KEY:
        if len(path) == 2 and path[1] in size_matching.KEYS:
            return True
        issues.append(
            Issue(key, "nothing reads this key", [f"{size_matching.KEY}.{name}" for name in size_matching.KEYS])
        )
        return False
    family = path[0]
    if family not in catalog.families():
        issues.append(Issue(key, f"there is no family {family!r}", near(family, catalog.families())))
        return False
    at, node = _deepest(path, base)
    if node is None:
        # `position.rope=...` or `block.name=...`: a dot written for the = of a choice
        issues.append(Issue(key, f"{family} has no such part", _dot_hint(path, value, folders) or _parts(base, family)))
        return False
    rest = path[at:]
    if not rest or rest[0] in RESERVED:
        if rest == ["_target_"]:
            return True  # judged with the whole tree
        issues.append(Issue(key, "is not open to overrides"))
        return False
    legal = _options(node, allow)
    if rest[0] in legal:
        return True
    prefix = ".".join(path[:at])
    hint = _dot_hint(path, value, folders) or [f"{prefix}.{name}" for name in near(rest[0], legal)]
    has = f"it has {', '.join(legal)}" if legal else "it has none"
    issues.append(
        Issue(key, f"{prefix} ({node['_target_'].rsplit('.', 1)[-1]}) has no option {rest[0]!r}; {has}", hint)
    )
    return False


def _dot_hint(path: list[str], value: str, folders: tuple[Path, ...]) -> list[str]:
    names = catalog.choices(path[0], folders)
    picked = next((word for word in (value, path[1]) if word in names), None)
    if picked:
        return [f"{path[0]}={picked}"]
    inner = f"{path[1]}={value}"
    if path[1] in catalog.families() and value in catalog.choices(path[1], folders):
        return [inner]
    return [f"{path[0]}={name}" for name in near(value, names)] if path[1] in ("name", "type") else []


def _deepest(path: list[str], base: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    """The last node with a `_target_` along a dotted key, and where the option's name starts."""
    found: tuple[int, dict[str, Any] | None] = (0, None)
    tree: Any = base
    for position, part in enumerate(path):
        tree = tree.get(part) if isinstance(tree, dict) else None
        if isinstance(tree, dict) and "_target_" in tree:
            found = (position + 1, tree)
    return found


def _parts(base: dict[str, Any], family: str) -> list[str]:
    node = base.get(family)
    return [f"{family}.{name}" for name in node] if isinstance(node, dict) else []


def _options(node: dict[str, Any], allow: list[str]) -> list[str]:
    target = str(node["_target_"])
    try:
        return list(options(locate(target))) if allowed(target, allow) else []
    except ValueError:
        return []


def allow_of(values: list[tuple[str, str]]) -> list[str]:
    """The packages that `allow=[...]` names on the command line."""
    given = next((value for key, value in values if key == "allow"), "")
    return [word.strip(" '\"") for word in given.strip("[]").split(",") if word.strip()]


def nodes(tree: Any, prefix: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every mapping with a `_target_`, with its dotted key, parents first."""
    found: list[tuple[str, dict[str, Any]]] = []
    if isinstance(tree, dict):
        if "_target_" in tree:
            found.append((prefix, tree))
        for key, value in tree.items():
            found += nodes(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(tree, list):
        for position, value in enumerate(tree):
            found += nodes(value, f"{prefix}.{position}")
    return found
