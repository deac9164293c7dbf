"""From a command line to a config: Hydra composes. Every override is checked first, to report all problems together.

Hydra accepts `model.attention=gqa` (the sub-config becomes a string) and `+typo=1` (a key that no component reads), and
stops at its first error. Here each override is parsed with Hydra's grammar, sorted into choices (`block=pre_norm`)
and values (`model.dim=64`), and compared with the config tree and the signatures.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from blockyard.config import catalog, nested_choices, presets, size_matching, tree, user_folders
from blockyard.config.known_keys import KnownKeys
from blockyard.config.override_grammar import allowed_packages, parse_override
from blockyard.config.overrides import sort_overrides
from blockyard.config.retarget import retarget
from blockyard.config.schema import REQUIRED, Root, options
from blockyard.config.targets import allowed, locate
from blockyard.contracts import Issue

if TYPE_CHECKING:
    from omegaconf import DictConfig

Config = dict[str, Any]
Choices = dict[str, str | None]


@dataclass
class Composed:
    """A resolved config as plain data, the choice made in each family, and every problem.

    folders: the user's own config folders
    matched: the record of the size that was solved for; see `size_matching.solve`
    """

    config: Config
    choices: Choices
    folders: tuple[Path, ...] = ()
    issues: list[Issue] = field(default_factory=list)
    matched: dict[str, Any] = field(default_factory=dict)


def compose(overrides: Sequence[str], config_dirs: Iterable[str] = (), *, multirun: bool = False) -> Composed:
    """The config of a command line, or of the first run of a multirun. Problems are collected, never raised."""
    issues: list[Issue] = []
    folders, problems = user_folders.folders(config_dirs, overrides)
    issues += [Issue(where, what) for where, what in problems]
    if issues:  # a folder that cannot be trusted is not composed from
        return Composed({}, {}, (), issues)
    own = [override for override in overrides if not override.startswith("hydra.searchpath=")]
    ordered = sort_overrides(own, folders, issues, multirun)
    groups, replaced = presets.expand(ordered.groups, folders)
    hydra = _Hydra(groups, replaced, [*ordered.hydra, *_searchpath(folders)])
    base, choices = hydra.compose([], issues)
    if not base:  # Hydra could not compose at all and has reported the reason
        return Composed({}, {}, folders, issues)
    # Options that list nested choices come first: they decide which options there are.
    listing = {f"{nested.key}.{nested.names}" for nested in nested_choices.nested_choices(base)}
    early = [f"++{key}={value}" for key, value in ordered.values if key in listing]
    if early:
        base = hydra.compose(early, [])[0] or base
    nested_choices.fill(base, folders)
    if base.get("allow"):
        issues.append(Issue("allow", "is taken from the command line only, not from a file", ["allow=[mypackage]"]))
    retarget(base, ordered.values)
    known_keys = KnownKeys(base, choices, allowed_packages(ordered.values), folders)
    values = []
    for key, value in ordered.values:
        issue = known_keys.issue(key, value)
        issues += [issue] if issue else []
        values += [] if issue else [f"++{key}={value}"]
    config = hydra.compose(values, issues)[0] if values else base
    if not config:
        return Composed({}, {}, folders, issues)
    retarget(config, ordered.values, keep_typed=True)
    complete(config, folders)
    config["name"] = config.get("name") or _default_name(choices)
    matched = size_matching.solve(config, {key for key, _ in ordered.values}, issues)
    return Composed(config, choices, folders, issues, matched)


def complete(config: Config, folders: tuple[Path, ...] = ()) -> None:
    """Write the default of every option that a node leaves out into the config, so that a frozen config is whole."""
    nested_choices.fill(config, folders)
    for name, option in options(Root).items():
        if option.default is not REQUIRED:
            config.setdefault(name, list(option.default) if isinstance(option.default, tuple) else option.default)
    for _, node in tree.nodes(config):
        target = str(node["_target_"])
        if not allowed(target, list(config.get("allow") or [])):
            continue
        try:
            signature = options(locate(target))
        except ValueError:
            continue  # `check` reports it
        for name, option in signature.items():
            if option.default is not REQUIRED and name not in node:
                default = _plain(option.default)
                # A library's class may have a default that no YAML can hold, such as a device: it stays unwritten.
                if default is None or isinstance(default, bool | int | float | str | list | dict):
                    node[name] = default


def _searchpath(folders: tuple[Path, ...]) -> list[str]:
    return [f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders)}]"] if folders else []


@dataclass
class _Hydra:
    """The config that Hydra composes from the choices of a command line.

    groups: `family=name`, those of a preset too; replaced: families whose choice differs from the preset's
    hydra: overrides of Hydra's own keys
    """

    groups: list[str]
    replaced: list[str]
    hydra: list[str]

    def compose(self, values: Sequence[str], issues: list[Issue]) -> tuple[Config, Choices]:
        """The resolved config with values (`++key=value`) set in it; empty where that fails, with an issue."""
        config, choices = _resolved([*self.groups, *self.hydra], values, issues)
        if config and self.replaced:  # the preset's options do not apply to what replaces its choice
            own = [group for group in self.groups if not group.startswith(f"{presets.FAMILY}=")]
            bare = _resolved([*own, *self.hydra], values, issues)[0]
            config |= {family: bare[family] for family in self.replaced if family in bare}
        return config, choices


def _resolved(overrides: Sequence[str], values: Sequence[str], issues: list[Issue]) -> tuple[Config, Choices]:
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # The user's own files may change while this process runs; the package's do not.
    uncached = any(override.startswith("hydra.searchpath=") for override in overrides)
    composed_by_hydra = _composed_by_hydra.__wrapped__ if uncached else _composed_by_hydra
    try:
        pickled, choices = composed_by_hydra(tuple(overrides))
        config: DictConfig = pickle.loads(pickled)
        problems = [issue for value in values for issue in _set(config, value)]
        if problems:
            issues += problems
            return {}, {}
        return cast(Config, OmegaConf.to_container(config, resolve=True)), dict(choices)
    except (HydraException, OmegaConfBaseException) as error:
        issues.append(Issue("config", _one_line(error)))
        return {}, {}


def _set(config: DictConfig, text: str) -> Iterator[Issue]:
    """Set `++key=value` in place as Hydra does, or say why it cannot be set."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    key, _, value = text.partition("=")
    try:
        override = parse_override(text)
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError) as error:
        yield Issue(key.lstrip("+"), f"{value} cannot be set ({_one_line(error)})")


@lru_cache(maxsize=256)
def _composed_by_hydra(overrides: tuple[str, ...]) -> tuple[bytes, Choices]:
    """The config of choices alone, unresolved and pickled, and the choice of each family. Takes about 0.1 s."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
        composed = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
    choices = {k: v for k, v in composed.hydra.runtime.choices.items() if k in catalog.families()}
    config = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    return pickle.dumps(config), choices


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _default_name(choices: Choices) -> str:
    """The experiment and the preset; without an experiment the model, or the preset, and the data."""
    keys = (
        ("experiment", "preset")
        if choices.get("experiment")
        else ("preset" if choices.get("preset") else "model", "data")
    )
    return "_".join(str(choices[key]) for key in keys if choices.get(key)) or "run"


def _plain(value: Any) -> Any:
    """A default as config data: a factory as its node, a dataclass as a mapping, a tuple as a list."""
    if isinstance(value, partial):
        node = {"_target_": f"{value.func.__module__}.{value.func.__qualname__}", "_partial_": True}
        return node | {name: _plain(option) for name, option in value.keywords.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value
