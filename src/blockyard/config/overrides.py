"""Sorts the overrides of a command line into choices (`block=pre_norm`), values (`model.dim=64`) and Hydra's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.config import catalog
from blockyard.config.override_grammar import parse_override
from blockyard.contracts import Issue
from blockyard.errors import did_you_mean, near

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

MULTIRUN_KEYS = ("hydra.searchpath", "hydra.verbose", "hydra.sweep.", "hydra.sweeper.", "hydra.launcher.")
MULTIRUN_GROUPS = ("hydra/launcher", "hydra/sweeper")


@dataclass
class SortedOverrides:
    """Overrides by kind.

    groups: choices, `family=name`
    values: options, as (dotted key, value as written)
    hydra: keys of Hydra itself
    """

    groups: list[str] = field(default_factory=list)
    values: list[tuple[str, str]] = field(default_factory=list)
    hydra: list[str] = field(default_factory=list)


def sort_overrides(
    overrides: Sequence[str], folders: tuple[Path, ...], issues: list[Issue], multirun: bool = False
) -> SortedOverrides:
    """Overrides by kind; one that is not valid is appended to `issues` instead.

    multirun: allow several values a key (`block=pre_norm,post_norm`); the first stands for all
    """
    result = SortedOverrides()
    for text in overrides:
        key, _, value = text.partition("=")
        name = key.lstrip("+~")
        try:
            override = parse_override(text)
        except ValueError as error:
            reason = "no value given" if "=" not in text else str(error)
            issues.append(Issue(name, f"cannot parse {text!r} ({reason})", ["key=value", "'key=\"text with = or ,\"'"]))
            continue
        swept, values = override.is_sweep_override(), _values(override)
        if (swept or len(values) != 1) and not multirun:
            issues.append(Issue(name, f"{value!r} is several values; a single run takes one", [f"-m {text}"]))
        elif override.is_delete():
            issues.append(Issue(name, "cannot be deleted; every family has a choice and every option a value"))
        elif name.startswith("hydra"):
            _sort_hydra(name, text, result, issues, multirun)
        elif name in catalog.families():
            _sort_choice(name, key, values, folders, result, issues)
        elif "/" in name or "@" in name:
            hint = _slash_hint(name, value) or near(name.replace("@", "/").split("/")[0], catalog.families())
            issues.append(Issue(name, "unknown config group", hint, see="`blockyard list`"))
        elif values:
            result.values.append((name, next(override.sweep_string_iterator()) if swept else value))
    return result


def unknown_choice(family: str, name: object, choices: Sequence[str]) -> Issue:
    """The issue of a name that no YAML of a family has."""
    return Issue(
        family, f"unknown {family} {name!r}{did_you_mean(str(name), choices)}", see=f"`blockyard list {family}`"
    )


def _values(override: Override) -> list[Any]:
    """The values of an override: one, several for `a,b`, none where only Hydra can expand them (glob, range)."""
    from hydra.core.override_parser.types import ChoiceSweep

    if not override.is_sweep_override():
        return [override.value()]
    sweep = override.value()
    return [getattr(value, "text", value) for value in sweep.list] if isinstance(sweep, ChoiceSweep) else []


def _sort_hydra(name: str, text: str, result: SortedOverrides, issues: list[Issue], multirun: bool) -> None:
    if name == "hydra.searchpath" and text.startswith("+"):
        issues.append(Issue(name, f"write it without +: {text.lstrip('+')}"))
    elif name == "hydra.searchpath":
        result.hydra.append(text)
    elif not name.startswith(MULTIRUN_KEYS) and name not in MULTIRUN_GROUPS:
        issues.append(Issue(name, "cannot be overridden", [*MULTIRUN_GROUPS, *(k.rstrip(".") for k in MULTIRUN_KEYS)]))
    elif not multirun:
        issues.append(Issue(name, "has an effect on multiruns only", [f"-m {text}"]))


def _sort_choice(
    family: str,
    key: str,
    values: list[Any],
    folders: tuple[Path, ...],
    result: SortedOverrides,
    issues: list[Issue],
) -> None:
    choices = catalog.choices(family, folders)
    if key != family:
        issues.extend(Issue(family, f"write it without + or ~: {family}={value}") for value in values)
        return
    optional = family in ("experiment", "preset")
    unknown = [v for v in values if not (v is None and optional) and not (isinstance(v, str) and v in choices)]
    issues.extend(unknown_choice(family, value, list(choices)) for value in unknown)
    if unknown or not values:
        return
    if values[0] is None:  # `experiment=null` takes an earlier experiment back
        result.groups = [group for group in result.groups if not group.startswith(f"{family}=")]
    else:
        result.groups.append(f"{family}={values[0]}")


def _slash_hint(name: str, value: str) -> list[str]:
    """What `position/rope=...` or `data/digits=1` probably stands for."""
    family, _, rest = name.replace("@", "/").partition("/")
    if family not in catalog.families():
        return []
    choice = next((text for text in (rest, value) if text in catalog.choices(family)), None)
    return [f"{family}={choice}"] if choice else [f"{family}.{rest}={value}"]
