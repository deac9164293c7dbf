"""Merges the overrides of a command line: the files of its choices, as plain data, and its values.

Hydra finds the files and their order. They hold little beside the name of a class, so that merging them
needs none of OmegaConf's nodes, each of which is copied and linked to its parent again and again: that is two thirds of
the time of a composition. Types are checked by the schema afterwards.

Files of a user's own config folder may come from a stranger. Keys under `hydra` name callbacks, launchers and logging
classes that Hydra's application calls, and `allow` names packages that are imported. However a file reaches them (a
package, an escape, an alias, a link, a defaults list), the merged keys differ from the package's own, and such a config
is refused before anything is called or imported.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path

from blockyard.config import nested_choices, presets
from blockyard.config.choices import catalog
from blockyard.config.defaults import fill_defaults
from blockyard.config.interpolations import check_grammar, resolve
from blockyard.config.known_keys import KnownKeys
from blockyard.config.overrides import OverrideValue, SortedOverrides
from blockyard.config.tree import Node, get, merge_into, put, reach
from blockyard.config.untrusted.user_yaml import HYDRA, UnsafeFileError
from blockyard.contracts import Issue
from blockyard.errors import shortened

Choices = dict[str, str | None]

PRIMARY = "config"  # the file with the defaults list of all families, and the only one that may set keys of Hydra
ALLOW = Issue("allow", "is taken from the command line only, not from a file", ["allow=[mypackage]"])
# The nodes that the command line may give a class without a YAML of its own, by the parts of their dotted keys:
# `logger` and `callbacks.NAME`, which are used alongside the model. Choices of other families are the files in conf/.
RETARGETED = {"logger": 1, "callbacks": 2}


class ReachingError(ValueError):
    """Files changed keys that they may not change."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(str(issue))
        self.issue = issue


def merge(ordered: SortedOverrides, folders: tuple[Path, ...], issues: list[Issue]) -> tuple[Node, Choices]:
    """Return the config of choices and known values, resolved, and the choice of each family; ({}, {}) on failure."""
    groups, replaced = presets.expand(ordered.groups, folders)
    config: Node = {}
    choices: Choices = {}
    with _failures_as(issues):
        merged, choices = merge_choices(groups, replaced, folders)
        # Nested choices and new classes before values: they decide which keys there are.
        nested_choices.fill(merged, folders, {value.key: value.value for value in ordered.values})
        _retarget(merged, ordered.values)
        _set_values(merged, choices, ordered, folders, issues)
        config = resolve(merged, issues)  # after the values, which an interpolation may name
        presets.remove_options(config, choices, folders)  # last: another option may interpolate one of these
    return (config, choices) if config else ({}, {})


@contextlib.contextmanager
def _failures_as(issues: list[Issue]) -> Iterator[None]:
    """Turn an error of Hydra, of OmegaConf or of a guard inside the block into an issue."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except ReachingError as reaching:
        issues.append(reaching.issue)
    except UnsafeFileError as unsafe:
        issues.append(Issue(str(unsafe.path), unsafe.reason))
    except RecursionError:
        issues.append(Issue("config", "a defaults list or an interpolation leads back to itself"))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        issues.append(Issue("config", " ".join(str(error).split())))


def _retarget(config: Node, values: Iterable[OverrideValue]) -> None:
    """Give callbacks and loggers their new class in place, without the options of the former one."""
    for value in values:
        key, _, last = value.key.rpartition(".")
        above, _, name = key.rpartition(".")
        if last != "_target_" or key.count(".") + 1 != RETARGETED.get(key.partition(".")[0]):
            continue
        parent = get(config, above) if above else config
        if isinstance(parent, dict):
            parent[name] = {"_target_": value.value}


def _set_values(
    config: Node, choices: Choices, ordered: SortedOverrides, folders: tuple[Path, ...], issues: list[Issue]
) -> None:
    """Set values in place. A value with an unknown key is an issue, and so is one that cannot be set."""
    values = ordered.values
    known_keys = KnownKeys(config, choices, ordered.allow, folders)
    unknown = [known_keys.issue(value.key, value.text) for value in values]
    issues += [issue for issue in unknown if issue is not None]
    for value, issue in zip(values, unknown, strict=True):
        if issue is not None:
            continue
        path = value.key.split(".")
        try:
            reach(config, path[:-1])  # also where the value is refused: `check` then reports what it would be inside
            check_grammar(value.value)
            put(config, path, value.value)
        except ValueError as error:
            issues.append(Issue(value.key, f"{shortened(value.text)} cannot be set ({error})"))


def merge_choices(groups: Sequence[str], replaced: Sequence[str], folders: tuple[Path, ...]) -> tuple[Node, Choices]:
    """Return the config of choices alone, its interpolations unresolved, and the choice of each family.

    Raises ReachingError and UnsafeFileError for files of a user that are refused, and Hydra's errors.

    groups: `family=name`, the choices that a preset makes too
    replaced: families with another choice than the preset's, so that the preset's options do not apply
    folders: the user's own config folders
    """
    # The user's own files may change while this process runs; the package's do not.
    merged = _merge_files.__wrapped__ if folders else _merge_files
    content, choices = merged(tuple(groups), tuple(replaced), folders)
    config: Node = pickle.loads(content)
    return config, dict(choices)


@lru_cache(maxsize=256)
def _merge_files(
    groups: tuple[str, ...], replaced: tuple[str, ...], folders: tuple[Path, ...]
) -> tuple[bytes, Choices]:
    """Return the pickled config of choices, with every default, and the choice of each family.

    This is the only cache of composed configs. A pickle is copied faster than the config.
    """
    single, several = _apart(groups)
    content, chosen = _content(single, replaced, folders)
    for family, names in several.items():
        # Hydra 1.3 merges several choices of a group into one node, in which one logger would overwrite the other.
        merged: Node = {}
        for name in names:
            node = _content((*single, f"{family}={name}"), replaced, folders)[0][family]
            merged |= node if family == "callbacks" else {name: node}
        content[family] = merged
    families = (*catalog.families(), *(key for key in catalog.OF_SOURCE if chosen.get(key)))
    choices = {family: chosen[family] for family in families if family in chosen}
    choices |= {family: ",".join(names) for family, names in several.items()}
    if choices[presets.RECIPE] is None:  # as in the choices of runs from before there were recipes
        del choices[presets.RECIPE]
    fill_defaults(content)  # before values are set, which may interpolate any option
    return pickle.dumps(content), choices


def _content(groups: Sequence[str], replaced: Sequence[str], folders: tuple[Path, ...]) -> tuple[Node, Choices]:
    """Return the config that the files of single choices merge to, and the choice of each family.

    Raises ReachingError where a file of the user's changes keys of Hydra or `allow`.
    """
    from blockyard.config.hydra_sources import read_files

    files, choices = read_files(groups, folders)
    primary = next(file for file in files if file.path == PRIMARY)
    own_keys = deepcopy(primary.content.get("hydra"))  # the merge writes into the files' mappings
    content: Node = {}
    for file in files:
        node = file.content
        if presets.FAMILY in file.groups:
            node = {family: options for family, options in node.items() if family not in replaced}
        merge_into(content, node)
    _refuse_reaching(content, own_keys)
    content.pop("hydra", None)
    return content, choices


def _refuse_reaching(content: Node, own: object) -> None:
    """Raise ReachingError where files have set `allow`, or other keys of Hydra itself than the package's `own`."""
    if content.get("allow") not in ([], None):
        raise ReachingError(ALLOW)
    present = content.get("hydra")
    if present == own:
        return
    changed = "hydra"
    if isinstance(present, dict) and isinstance(own, dict):
        names = sorted(name for name in present.keys() | own.keys() if present.get(name) != own.get(name))
        changed = f"hydra.{names[0]}"
    raise ReachingError(Issue(changed, f"a file of --config-dir {HYDRA}"))


def _apart(groups: Sequence[str]) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Return the overrides of one choice a family, and by family the names where there are several.

    `logger=[tensorboard,wandb]` names two. The last override of a family counts.
    """
    several = {}
    for group in groups:
        family, _, names = group.partition("=")
        if family in catalog.SEVERAL:
            several[family] = names.strip("[]").split(",") if names.startswith("[") else []
    several = {family: names for family, names in several.items() if names}
    single = tuple(group for group in groups if group.partition("=")[0] not in several)
    return single, several
