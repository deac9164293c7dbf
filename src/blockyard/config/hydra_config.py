"""The config of a command line: what Hydra composes from its choices, with values set in it, as plain data."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from blockyard.config import interpolations, presets, user_folders
from blockyard.config.choices import catalog
from blockyard.config.override_grammar import parse_override
from blockyard.config.placed_nodes import fill_defaults
from blockyard.config.tree import Node
from blockyard.config.untrusted import user_yaml
from blockyard.contracts import Issue
from blockyard.errors import shortened

if TYPE_CHECKING:
    from omegaconf import DictConfig


Choices = dict[str, str | None]
T = TypeVar("T")

# Sets numbers, flags and texts in a composed config without OmegaConf, which takes a hundred times longer.
#
# Of thousands of arms of a sweep most differ in such values only.

_OF_OMEGACONF = frozenset("$\\?")  # in interpolations, escapes and ???, the only texts that it reads more into


def literals(values: Sequence[str]) -> list[tuple[list[str], Any]] | None:
    """Values (`++key=value`) as (path, value), where all are literals; None where one needs OmegaConf."""
    assignments = []
    for text in values:
        try:
            override = parse_override(text)
        except ValueError:
            return None
        value = override.value()
        is_text = type(value) is str and _OF_OMEGACONF.isdisjoint(value)
        if not (is_text or value is None or type(value) in (bool, int, float)):
            return None
        assignments.append((override.key_or_group.split("."), value))
    return assignments


def assign(config: Node, assignments: list[tuple[list[str], Any]]) -> bool:
    """Replace plain values of a config in place; False, with some of them replaced, where a key is not there yet."""
    for path, value in assignments:
        node: Any = config
        for part in path[:-1]:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict) or isinstance(node.get(path[-1], {}), dict | list):
            return False
        node[path[-1]] = value
    return True


# What Hydra composes from choices alone, and the keys that files may not reach.
#
# Files of a user's own config folder may come from a stranger. Keys under `hydra` name callbacks, launchers and
# logging classes that Hydra's application calls, and `allow` names packages that are imported. However a file reaches
# them (a package, an escape, an alias, a link, a defaults list), the composed values differ from the shipped ones, and
# such a config is refused before anything is called or imported.

ALLOW = Issue("allow", "is taken from the command line only, not from a file", ["allow=[mypackage]"])
# What Hydra itself fills in while it composes.
_FILLED = {"overrides", "runtime", "searchpath"}


class ReachingError(ValueError):
    """Files changed keys that they may not change."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(str(issue))
        self.issue = issue


@lru_cache(maxsize=256)
def compose_choices(overrides: tuple[str, ...]) -> Composition:
    """Compose choices alone, with every default. The only cache of composed configs."""
    single, several = _apart(overrides)
    content, composed = _content(single)
    for family, names in several.items():
        nodes = [_content((*single, f"{family}={name}"))[0][family] for name in names]
        content[family] = _together(family, nodes, names)
    chosen = {key.rpartition("@")[2]: name for key, name in composed.items()}
    families = (*catalog.families(), *(key for key in catalog.OF_SOURCE if chosen.get(key)))
    choices = {family: chosen[family] for family in families if family in chosen}
    choices |= {family: ",".join(names) for family, names in several.items()}
    fill_defaults(content)  # before values are set, which may interpolate any option
    return Composition(pickle.dumps(content), choices)


def _apart(overrides: Sequence[str]) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The overrides without those that name several choices of a family, `logger=[tensorboard,wandb]`, and these."""
    several = {}
    for override in overrides:
        family, _, names = override.partition("=")
        if family in catalog.SEVERAL:
            several[family] = names.strip("[]").split(",") if names.startswith("[") else []
    named = {family: names for family, names in several.items() if names}
    return tuple(each for each in overrides if each.partition("=")[0] not in named), named


def _together(family: str, nodes: Sequence[Node], names: Sequence[str]) -> Node:
    """Several choices of a family as one node: loggers under their names, callbacks as one collection."""
    merged: Node = {}
    for name, node in zip(names, nodes, strict=True):
        merged |= node if family == "callbacks" else {name: node}
    return merged


def _content(overrides: Sequence[str]) -> tuple[Node, Choices]:
    """The config of choices, one of each family, as plain data, and the choices by Hydra's name of the family.

    Raises ReachingError where a file of the user's changes what it may not.
    """
    from omegaconf import OmegaConf

    from blockyard.config.hydra_sources import merge_package_files, use_package_files

    if any(override.startswith(user_folders.KEY) for override in overrides):
        composed = _compose(overrides)
        _refuse_reaching(composed)
        content = cast("Node", OmegaConf.to_container(composed, resolve=False))
        del content["hydra"]
        return content, {str(key): name for key, name in composed.hydra.runtime.choices.items()}
    with _initialised():
        use_package_files()
        return merge_package_files(overrides)


@contextlib.contextmanager
def _initialised() -> Iterator[None]:
    """Hydra over the package's folder of configs; afterwards that of an application around this is in force again."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    around = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = around


def _compose(overrides: Sequence[str]) -> DictConfig:
    """The config with Hydra's own keys. Hydra reads files here; it configures and calls nothing."""
    from hydra import compose as hydra_compose

    from blockyard.config.hydra_sources import use_package_files

    with _initialised():
        use_package_files()
        return hydra_compose("config", overrides=list(overrides), return_hydra_config=True)


def _refuse_reaching(composed: DictConfig) -> None:
    """Raise ReachingError where files have set `allow`, or keys of Hydra itself."""
    from omegaconf import OmegaConf

    if OmegaConf.to_container(composed, resolve=False).get("allow") not in ([], None):  # type: ignore[union-attr]
        raise ReachingError(ALLOW)
    own, keys = _own_keys(), _hydra_keys(composed)
    changed = sorted(name for name in own.keys() | keys.keys() if own.get(name) != keys.get(name))
    if changed:
        raise ReachingError(Issue(f"hydra.{changed[0]}", f"a file of --config-dir {user_yaml.HYDRA}"))


@cache
def _own_keys() -> Node:
    return _hydra_keys(_compose(()))


def _hydra_keys(composed: DictConfig) -> Node:
    """Hydra's own keys as plain data, without what it fills in from the command line."""
    from omegaconf import OmegaConf

    keys = cast("Node", OmegaConf.to_container(composed.hydra, resolve=False))
    job = {name: value for name, value in keys["job"].items() if name not in ("override_dirname", "name")}
    return {name: value for name, value in keys.items() if name not in _FILLED} | {"job": job}


@dataclass(frozen=True)
class Composition:
    """Hydra's composition of choices alone, before any value is set.

    pickled: the config as plain data, its interpolations unresolved; choices: the choice of each family
    """

    pickled: bytes
    choices: Choices

    def with_values(self, values: Sequence[str]) -> tuple[Node, list[Issue]]:
        """Return the resolved config with values (`++key=value`) set in it, and issues; {} where that fails.

        A value that cannot be set is left out, so that the other problems are found too.
        """
        if not values:
            pickled, issues = self._resolved
            return pickle.loads(pickled), list(issues)
        assignments = literals(values)
        if assignments is not None and self._is_literal and not self._resolved[1]:
            config: Node = pickle.loads(self._resolved[0])
            if config and assign(config, assignments):
                return config, []
        return _resolve(self.pickled, values)

    @cached_property
    def _resolved(self) -> tuple[bytes, list[Issue]]:
        """The config without values, pickled: that of every arm of a sweep in which only values differ."""
        if self._is_literal:
            issues = list(interpolations.problems(pickle.loads(self.pickled)))
            return (pickle.dumps({}) if issues else self.pickled), issues
        config, issues = _resolve(self.pickled, ())
        return pickle.dumps(config), issues

    @cached_property
    def _is_literal(self) -> bool:
        """Whether there are no interpolations, so that setting a value changes nothing else."""
        return b"${" not in self.pickled


@dataclass(frozen=True)
class HydraConfig:
    """The config of the choices on a command line.

    composition: of all choices
    bare: without the preset, whose options do not apply to `replaced`, the families whose choice differs from its own
    """

    composition: Composition
    bare: Composition | None = None
    replaced: Sequence[str] = ()

    @property
    def choices(self) -> Choices:
        """The choice of each family."""
        return dict(self.composition.choices)

    def with_values(self, values: Sequence[str]) -> tuple[Node, list[Issue]]:
        """As `Composition.with_values`."""
        config, issues = self.composition.with_values(values)
        if config and self.bare is not None:
            bare, bare_issues = self.bare.with_values(values)
            issues += [issue for issue in bare_issues if issue not in issues]
            config |= {family: bare[family] for family in self.replaced if family in bare}
        return config, issues


def compose_groups(
    groups: Sequence[str], replaced: Sequence[str], folders: tuple[Path, ...]
) -> tuple[HydraConfig | None, list[Issue]]:
    """Let Hydra compose the choices; None with an issue where it cannot.

    groups: `family=name`, those of a preset too; replaced: families whose choice differs from the preset's
    folders: the user's own config folders
    """
    composition, issues = _composition(groups, folders)
    if composition is None:
        return None, issues
    if not replaced:
        return HydraConfig(composition), issues
    without_preset = [group for group in groups if not group.startswith(f"{presets.FAMILY}=")]
    bare, issues = _composition(without_preset, folders)
    return HydraConfig(composition, bare, replaced), issues


def _composition(groups: Sequence[str], folders: tuple[Path, ...]) -> tuple[Composition | None, list[Issue]]:
    # The user's own files may change while this process runs; the package's do not.
    composed_by_hydra = compose_choices.__wrapped__ if folders else compose_choices
    overrides = (*map(as_hydra_names_it, groups), *user_folders.searchpath(folders))
    return _reported(lambda: composed_by_hydra(overrides), None)


def _resolve(pickled: bytes, values: Sequence[str]) -> tuple[Node, list[Issue]]:
    """Set values with OmegaConf and resolve interpolations."""
    from omegaconf import OmegaConf

    issues: list[Issue] = []

    def resolved() -> Node:
        config: DictConfig = OmegaConf.create(pickle.loads(pickled))
        issues.extend(issue for value in values for issue in _set(config, value))
        problems = list(interpolations.problems(OmegaConf.to_container(config, resolve=False)))
        issues.extend(problems)
        return {} if problems else _plain(config, issues)

    nothing: Node = {}
    config, failures = _reported(resolved, nothing)
    return config, issues + failures


def _reported(function: Callable[[], T], failed: T) -> tuple[T, list[Issue]]:
    """Return what a function returns; `failed` and an issue where Hydra, OmegaConf or a guard refuses."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return function(), []
    except ReachingError as reaching:
        issue = reaching.issue
    except user_yaml.UnsafeFileError as unsafe:
        issue = Issue(str(unsafe.path), unsafe.reason)
    except RecursionError:
        issue = Issue("config", "a defaults list or an interpolation leads back to itself")
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        issue = Issue("config", _one_line(error))
    return failed, [issue]


def _plain(config: DictConfig, issues: list[Issue]) -> Node:
    """The resolved config as plain data. A value that names an absent key is left out with an issue, so that the other
    problems are found too.
    """
    from omegaconf import DictConfig, OmegaConf, open_dict
    from omegaconf.errors import InterpolationKeyError

    while True:
        try:
            return cast("Node", OmegaConf.to_container(config, resolve=True))
        except InterpolationKeyError as error:
            key = str(error.full_key)
            above, _, last = key.rpartition(".")
            parent = OmegaConf.select(config, above) if above else config
            if not isinstance(parent, DictConfig) or last not in parent:
                raise
            with open_dict(parent):
                value = parent._get_node(last)._value()  # type: ignore[union-attr]
                del parent[last]
            text = f"{shortened(str(value))} names a key that this config does not have; \\${{ stands for ${{ itself"
            literal = str(value).replace("${", "\\${")
            issues.append(Issue(key, text, [f"'{key}={literal}'"]))


def as_hydra_names_it(group: str) -> str:
    """`tokenizer@source_tokenizer=patch` for `source_tokenizer=patch`; `same` is no choice at all."""
    family, _, name = group.partition("=")
    if family not in catalog.OF_SOURCE:
        return group
    return f"~{catalog.hydra_key(family)}" if name == catalog.SAME else f"{catalog.hydra_key(family)}={name}"


def _set(config: DictConfig, text: str) -> Iterator[Issue]:
    """Set `++key=value` in place as Hydra does, or say why it cannot be set."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    key, _, value = text.partition("=")
    try:
        override = parse_override(text)
        name, new = override.key_or_group, override.value()
        old = OmegaConf.select(config, name, throw_on_resolution_failure=False)
        # A list and a mapping cannot be merged: an option that takes either is replaced.
        unlike = isinstance(new, dict) if OmegaConf.is_list(old) else isinstance(new, list) and OmegaConf.is_dict(old)
        OmegaConf.update(config, name, new, merge=not unlike, force_add=True)
    except (OmegaConfBaseException, ValueError) as error:
        yield Issue(key.lstrip("+"), f"{shortened(value)} cannot be set ({_one_line(error)})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
