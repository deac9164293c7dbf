"""Sorts the overrides of a command line into choices (`block=pre_norm`), values (`model.dim=64`) and Hydra's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import DecimalException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blockyard.config import known_keys, user_folders
from blockyard.config.choices import catalog
from blockyard.config.override_grammar import parse_override, parse_value
from blockyard.config.untrusted.targets import allow_of
from blockyard.contracts import Issue
from blockyard.errors import UserError, did_you_mean, near, quoted

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


# Expands the overrides of a multirun (`seed=1,2 norm=glob(*)`) into those of each run, without composing a config.
#
# The meaning is that of Hydra's basic sweeper: every combination, the last key varies fastest, and a key that is given
# twice has its last value.

MAX_RUNS = 10_000


def expand(overrides: Sequence[str], folders: tuple[Path, ...] = ()) -> list[list[str]]:
    """The overrides of each run. Raises UserError for too many, and ValueError for overrides that cannot be swept."""
    by_key: dict[str, list[str]] = {}
    for text in overrides:
        override = parse_override(text)
        key = override.get_key_element()
        values = swept_values(override, folders) if override.is_sweep_override() else None
        by_key[key] = [text] if values is None else [f"{key}={value}" for value in values]
    count = 1
    for alternatives in by_key.values():
        count *= len(alternatives)
    if count > MAX_RUNS:
        raise UserError(f"-m: {count:,} runs are too many; at most {MAX_RUNS:,}")
    return [list(run) for run in itertools.product(*by_key.values())]


def swept_values(override: Override, folders: tuple[Path, ...] = ()) -> list[str]:
    """The values of a swept override, as they would be typed. Raises ValueError where there are none, or too many."""
    from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep
    from hydra.errors import HydraException

    value, key = override.value(), override.key_or_group
    if isinstance(value, IntervalSweep):
        raise ValueError("interval() has no end of values; use choice() or range(), or `search:` of `blockyard sweep`")
    if isinstance(value, Glob):
        if key not in catalog.run_keys():
            raise ValueError("glob() matches the choices of a family, and this is none")
        values = value.filter(sorted(catalog.choices(key, folders)))
    else:
        try:
            if isinstance(value, RangeSweep):  # counted first: shuffle() would make a list of all
                count = sum(1 for _ in itertools.islice(value.range(), MAX_RUNS + 1))
                if count > MAX_RUNS:
                    raise ValueError(f"more than {MAX_RUNS:,} values")
            values = list(override.sweep_string_iterator())
        except (HydraException, DecimalException) as error:
            raise ValueError(str(error) or type(error).__name__) from error
    if not values:
        raise ValueError("it matches no value")
    return values


MULTIRUN_KEYS = ("hydra/launcher", "hydra/sweeper", "hydra.launcher", "hydra.sweeper", "hydra.sweep")
FOLDER_KEYS = ("hydra.run", "hydra.job.chdir", "hydra.output_subdir")


class Value(NamedTuple):
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
    """

    groups: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    @property
    def allow(self) -> list[str]:
        """The packages that the values allow."""
        return allow_of({value.key: value.value for value in self.values})


def sort_overrides(
    overrides: Sequence[str], folders: tuple[Path, ...], issues: list[Issue], multirun: bool = False
) -> SortedOverrides:
    """Overrides by kind, without `hydra.searchpath`; one that is not valid is appended to `issues` instead.

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
            reason = known_keys.absent(text) or ("no value given" if "=" not in text else str(error))
            hints = meant_by(text, folders) or _of_family(text) or ["key=value", "'key=\"text with = or ,\"'"]
            issues.append(Issue(name, f"cannot parse {quoted(text)} ({reason})", hints))
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
            empty = [f"{name}=none"] if name in catalog.run_keys() and "none" in catalog.choices(name, folders) else []
            issues.append(Issue(name, text, empty))
        elif name.startswith("hydra"):
            issues.append(_hydra_issue(name, text))
        elif name in catalog.run_keys():
            _sort_choice(name, key, _values(override, folders), folders, result, issues)
        elif "/" in name or "@" in name:
            hint = _slash_hint(name, value) or near(name.replace("@", "/").split("/")[0], catalog.run_keys())
            issues.append(Issue(name, "unknown config group", hint, see="`blockyard list`"))
        else:
            result.values.append(Value(name, first, parse_value(first) if swept else override.value()))
    return result


def meant_by(name: str, folders: tuple[Path, ...] = ()) -> list[str]:
    """What a word without a value may mean: `family=choice`, an experiment or a preset first."""
    return known_keys.meant(name, [(family, list(catalog.choices(family, folders))) for family in _families_first()])


def _families_first() -> list[str]:
    """Every family, those whose choices set options of others first."""
    return sorted(catalog.groups(), key=lambda family: ("experiment", "preset", family).index(family))


def _of_family(name: str) -> list[str]:
    """What `scheduler=` may mean: the family that has this name elsewhere, or a family without its choice."""
    bare = name.partition("=")[0]
    family = bare if bare in catalog.run_keys() else known_keys.family_for(bare)
    return [f"{family}=NAME"] if family else []


def unknown_choice(family: str, name: object, choices: Sequence[str]) -> Issue:
    """The issue of a name that no YAML of a family has."""
    named_so = known_keys.choices_for(str(name), family)
    missing = known_keys.absent(str(name), family)
    others = [other for other in _families_first() if str(name) in catalog.choices(other)]
    # A name such as `default` is that of choices in many families, none of which it may mean here.
    elsewhere = others[:1] if len(others) == 1 or others[:1] in (["experiment"], ["preset"]) else []
    if named_so:
        hint = f"; did you mean {named_so[0].partition('=')[2]}?"
    elif missing:
        hint = f"; {missing}"
    else:
        # A word that another family knows is no slip of the keys: nope is position=none, and no token mixer.
        known = known_keys.choices_for(str(name))
        spelt = "" if known else did_you_mean(str(name), choices)
        hint = f"; did you mean {elsewhere[0]}={name}?" if elsewhere and not _contains(str(name), choices) else spelt
    text = f"unknown {family} {quoted(name)}{hint}"
    return Issue(family, text, see=f"`blockyard list {family}`", unknown=True)


def _contains(name: str, choices: Sequence[str]) -> bool:
    """Whether a choice begins with a name, as hard_attention with hard."""
    return any(choice.startswith(name) for choice in choices)


def _values(override: Override, folders: tuple[Path, ...]) -> list[Any]:
    """The values of an override: one, or several that are swept."""
    from hydra.core.override_parser.types import ChoiceSweep

    if not override.is_sweep_override():
        return [override.value()]
    sweep = override.value()
    if not isinstance(sweep, ChoiceSweep):
        return list(swept_values(override, folders))
    return [getattr(value, "text", value) for value in sweep.list]


def _hydra_issue(name: str, text: str) -> Issue:
    """Why a key of Hydra itself cannot be set."""
    if name == user_folders.KEY:
        return Issue(name, f"write it without +: {text.lstrip('+')}")
    if name.startswith(MULTIRUN_KEYS):
        what = "cannot be overridden: the runs of -m start one after another, in folders of their own under outputs/"
        return Issue(name, what, see="`blockyard sweep --help` for runs in parallel, on SLURM or Ray, and searches")
    what = "cannot be overridden; of Hydra's own keys only hydra.searchpath can"
    if name.startswith(FOLDER_KEYS):
        what += ", and no command changes the working folder; runs are written below outputs=FOLDER"
    return Issue(name, what)


def _sort_choice(
    family: str,
    key: str,
    values: list[Any],
    folders: tuple[Path, ...],
    result: SortedOverrides,
    issues: list[Issue],
) -> None:
    choices: Sequence[str] = list(catalog.choices(family, folders))
    if family in catalog.OF_SOURCE:
        choices = [catalog.SAME, *choices]
    if key != family:
        issues.extend(Issue(family, f"write it without + or ~: {family}={value}") for value in values)
        return
    if values and isinstance(values[0], list) and family in catalog.SEVERAL:
        _sort_several(family, values[0], choices, result, issues)
        return
    optional = family in ("experiment", "preset")
    unknown = [v for v in values if not (v is None and optional) and not (isinstance(v, str) and v in choices)]
    issues.extend(unknown_choice(family, value, choices) for value in unknown)
    if unknown or not values:
        return
    if values[0] is None:  # `experiment=null` takes an earlier experiment back
        result.groups = [group for group in result.groups if not group.startswith(f"{family}=")]
    else:
        result.groups.append(f"{family}={values[0]}")


def _sort_several(
    family: str, names: list[Any], choices: Sequence[str], result: SortedOverrides, issues: list[Issue]
) -> None:
    """`logger=[tensorboard,wandb]`: several choices of one family, which are used together."""
    names = [getattr(name, "text", name) for name in names]
    unknown = [name for name in names if not (isinstance(name, str) and name in choices)]
    issues.extend(unknown_choice(family, name, choices) for name in unknown)
    if not unknown and len(set(names)) != len(names):
        issues.append(Issue(family, f"names a choice twice: {', '.join(names)}"))
    elif not unknown and not names:
        issues.append(Issue(family, "names no choice", [f"{family}=none" if "none" in choices else f"{family}=quiet"]))
    elif not unknown:
        value = names[0] if len(names) == 1 else f"[{','.join(names)}]"
        result.groups.append(f"{family}={value}")


def _slash_hint(name: str, value: str) -> list[str]:
    """What `position/rope=...` or `data/digits=1` probably stands for."""
    family, _, rest = name.replace("@", "/").partition("/")
    if family not in catalog.run_keys():
        return []
    choice = next((text for text in (rest, value) if text in catalog.choices(family)), None)
    return [f"{family}={choice}"] if choice else [f"{family}.{rest}={value}"]
