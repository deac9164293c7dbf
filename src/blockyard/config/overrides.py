"""Sorts the overrides of a command line into choices (`block=pre_norm`), values (`model.dim=64`) and Hydra's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blockyard.config import habits, known_keys, user_folders
from blockyard.config.choices import catalog
from blockyard.config.multirun import swept_values
from blockyard.config.override_grammar import parse_override, parse_value
from blockyard.config.untrusted.targets import allow_of
from blockyard.contracts import Issue
from blockyard.errors import did_you_mean, near, quoted

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


# Keys of Hydra itself that a multirun, or the folder of a run, would have in another application.
MULTIRUN_KEYS = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper", "hydra.sweep")
FOLDER_KEYS = ("hydra.run", "hydra.job.chdir", "hydra.output_subdir")
EMPTY = ("none", "quiet")  # choices of a family that do nothing


class OverrideValue(NamedTuple):
    """An option that is set: its dotted key, the value as it was typed, and as plain data."""

    key: str
    text: str
    value: Any


@dataclass
class SortedOverrides:
    """Overrides by kind.

    groups: choices, `family=name`
    values: options
    deleted: callbacks, by their dotted keys; `callbacks` for all of them
    without_recipe: none is chosen for the data, as `recipe=null` says
    """

    groups: list[str] = field(default_factory=list)
    values: list[OverrideValue] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    without_recipe: bool = False

    @property
    def allow(self) -> list[str]:
        """The packages that the values allow."""
        return allow_of({value.key: value.value for value in self.values})


def sort_overrides(
    overrides: Sequence[str], folders: tuple[Path, ...], issues: list[Issue], multirun: bool = False
) -> SortedOverrides:
    """Return overrides by kind, without `hydra.searchpath`; one that is not valid is appended to `issues` instead.

    multirun: allow several values a key (`block=pre_norm,post_norm`); the first stands for all
    """
    result = SortedOverrides()
    for text in overrides:
        key, _, value = text.partition("=")
        name = key.lstrip("+~")
        if key == user_folders.KEY:
            continue
        try:
            override = parse_override(text)
        except ValueError as error:
            issues.append(_unparsed(text, name, error, folders))
            continue
        swept = override.is_sweep_override()
        if swept and not multirun:
            issues.append(Issue(name, f"{quoted(value)} is several values; a single run takes one", [f"-m {text}"]))
            continue
        try:
            first = swept_values(override, folders)[0] if swept else value
        except ValueError as error:
            issues.append(Issue(name, f"{quoted(value)} cannot be swept: {error}", see="`blockyard list`"))
            continue
        if override.is_delete() and name.partition(".")[0] == "callbacks":
            result.deleted.append(name)
        elif override.is_delete():
            text = "cannot be deleted: every family has a choice and every option a value; only callbacks can be"
            hint = []
            if name in catalog.run_keys() and "none" in catalog.choices(name, folders):
                hint.append(f"{name}=none")
            issues.append(Issue(name, text, hint))
        elif name.startswith("hydra"):
            issues.append(_hydra_issue(name, text))
        elif (family := name.removesuffix("._target_")) in habits.OF_TORCH and value.startswith(
            habits.OF_TORCH[family]
        ):
            choice, kind = habits.of_torch(family, value)
            result.groups.append(choice)
            result.values.append(OverrideValue(f"{family}.name", kind, kind))
        elif name in catalog.run_keys():
            _sort_choice(name, key, _values(override, folders), folders, result, issues)
        elif "/" in name or "@" in name:
            hint = _slash_hint(name, value) or near(name.replace("@", "/").split("/")[0], catalog.run_keys())
            issues.append(Issue(name, "unknown config group", hint, see="`blockyard list`"))
        else:
            result.values.append(OverrideValue(name, first, parse_value(first) if swept else override.value()))
    return result


def meant_by(name: str, folders: tuple[Path, ...] = ()) -> list[str]:
    """Return the choices, `family=choice`, that a name without a value may mean, of experiments and presets first."""
    choices = [(family, list(catalog.choices(family, folders))) for family in _families_first()]
    return known_keys.meant(name, choices)


def unknown_choice(family: str, name: object, choices: Sequence[str]) -> Issue:
    """Return the issue of a name that no YAML of a family has."""
    if name is None:
        return Issue(family, "null is not a choice", [f"{family}={choice}" for choice in EMPTY if choice in choices])
    typed = str(name)
    aliases = known_keys.choices_for(typed, family)
    missing = known_keys.absent(typed, family)
    others = [other for other in _families_first() if typed in catalog.choices(other)]
    # A name such as `default` is that of choices in many families, none of which it may mean here.
    elsewhere = others[:1] if len(others) == 1 or others[:1] in (["experiment"], ["preset"]) else []
    if answer := habits.CHOICES.get(f"{family}={typed}"):
        hint = f"; {answer}"
    elif aliases:
        hint = f"; did you mean {aliases[0].partition('=')[2]}?"
    elif missing:
        hint = f"; {missing}"
    elif elsewhere and not any(choice.startswith(typed) for choice in choices):
        hint = f"; did you mean {elsewhere[0]}={typed}?"
    elif known_keys.choices_for(typed):
        hint = ""  # an alias in another family is no slip of the keys: nope is position=none, and no token mixer
    else:
        hint = did_you_mean(typed, choices)
    text = f"unknown {family} {quoted(name)}{hint}"
    return Issue(family, text, see=f"`blockyard list {family}`", unknown=True)


def _unparsed(text: str, name: str, error: ValueError, folders: tuple[Path, ...]) -> Issue:
    """Return the issue of a text that Hydra's grammar does not have, with overrides that it may mean."""
    missing_value = "" if "=" in text else "no value given"
    reason = known_keys.absent(text) or missing_value or str(error)
    if text.endswith(","):
        reason = "it ends with a comma; several values are written without spaces, key=A,B"
    hints = meant_by(text, folders)
    if not hints:
        # `scheduler=`: a family by the name that it has elsewhere, or without its choice.
        bare = text.partition("=")[0]
        family = bare if bare in catalog.run_keys() else known_keys.family_for(bare)
        hints = [f"{family}=NAME"] if family else ["key=value", "'key=\"text with = or ,\"'"]
    return Issue(name, f"cannot parse {quoted(text)} ({reason})", hints)


def _families_first() -> list[str]:
    """Return every family; first the families whose choices set options of others."""
    return sorted(catalog.groups(), key=lambda family: ("experiment", "preset", family).index(family))


def _values(override: Override, folders: tuple[Path, ...]) -> list[Any]:
    """Return the values of an override: one, or several that are swept."""
    from hydra.core.override_parser.types import ChoiceSweep

    if not override.is_sweep_override():
        return [override.value()]
    sweep = override.value()
    if not isinstance(sweep, ChoiceSweep):
        return list(swept_values(override, folders))
    return [getattr(value, "text", value) for value in sweep.list]


def _hydra_issue(name: str, text: str) -> Issue:
    """Return the issue of a key of Hydra itself."""
    if name == user_folders.KEY:
        return Issue(name, f"write it without +: {text.lstrip('+')}")
    if name.startswith(MULTIRUN_KEYS):
        reason = "cannot be overridden: the runs of -m start one after another, in folders of their own under outputs/"
        return Issue(name, reason, see="`blockyard sweep --help` for runs in parallel, on SLURM or Ray, and searches")
    reason = "cannot be overridden; of Hydra's own keys only hydra.searchpath can"
    if name.startswith(FOLDER_KEYS):
        reason += ", and no command changes the working folder; runs are written below outputs=FOLDER"
    return Issue(name, reason)


def _sort_choice(
    family: str,
    key: str,
    values: list[Any],
    folders: tuple[Path, ...],
    result: SortedOverrides,
    issues: list[Issue],
) -> None:
    """Append the choice of a family to the groups; names that no choice has become issues.

    key: of the override, with its `+` or `~`; values: of the override, several where it is swept
    """
    choices: Sequence[str] = list(catalog.choices(family, folders))
    if family in catalog.OF_SOURCE:
        choices = [catalog.SAME, *choices]
    if key != family:
        issues.extend(Issue(family, f"write it without + or ~: {family}={value}") for value in values)
        return
    if values and isinstance(values[0], list) and family in catalog.SEVERAL:
        _sort_several(family, values[0], choices, result, issues)
        return
    optional = family in ("experiment", "preset", "recipe")
    unknown = [v for v in values if not (v is None and optional) and not (isinstance(v, str) and v in choices)]
    issues.extend(unknown_choice(family, value, choices) for value in unknown)
    if unknown or not values:
        return
    if values[0] is None:  # `experiment=null` takes an earlier experiment back
        result.groups = [group for group in result.groups if not group.startswith(f"{family}=")]
        if family == "recipe":
            result.without_recipe = True
    else:
        result.groups.append(f"{family}={values[0]}")


def _sort_several(
    family: str, names: list[Any], choices: Sequence[str], result: SortedOverrides, issues: list[Issue]
) -> None:
    """Append several choices of one family, which are used together, to the groups: `logger=[tensorboard,wandb]`."""
    names = [getattr(name, "text", name) for name in names]
    unknown = [name for name in names if not (isinstance(name, str) and name in choices)]
    if unknown:
        issues.extend(unknown_choice(family, name, choices) for name in unknown)
    elif len(set(names)) != len(names):
        issues.append(Issue(family, f"names a choice twice: {', '.join(names)}"))
    elif not names:
        issues.append(Issue(family, "names no choice", [f"{family}={choice}" for choice in EMPTY if choice in choices]))
    else:
        value = f"[{','.join(names)}]"
        if len(names) == 1:
            value = names[0]
        result.groups.append(f"{family}={value}")


def _slash_hint(name: str, value: str) -> list[str]:
    """Return the override that `position/rope=...` or `data/digits=1` probably stands for."""
    family, _, rest = name.replace("@", "/").partition("/")
    if family not in catalog.run_keys():
        return []
    for text in (rest, value):
        if text in catalog.choices(family):
            return [f"{family}={text}"]
    return [f"{family}.{rest}={value}"]
