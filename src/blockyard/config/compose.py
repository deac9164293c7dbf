"""From a command line to a config: Hydra composes. Every override is checked first, to report all problems together.

Hydra accepts `model.attention=gqa` (the sub-config becomes a string) and `+typo=1` (a key that no component reads), and
stops at its first error. Here each override is parsed with Hydra's grammar, sorted into choices (`block=pre_norm`)
and values (`model.dim=64`), and compared with the config tree and the signatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from blockyard.config import nested_choices, presets, replaced_choices, size_matching, starting_weights, user_folders
from blockyard.config.hydra_compose import Choices, Config
from blockyard.config.hydra_config import HydraConfig
from blockyard.config.known_keys import KnownKeys
from blockyard.config.override_grammar import allowed_packages
from blockyard.config.overrides import sort_overrides
from blockyard.config.placed_nodes import placed_nodes
from blockyard.config.retarget import retarget
from blockyard.config.schema import REQUIRED, Root, options
from blockyard.config.targets import allow_of
from blockyard.config.tokenizer_files import record_files
from blockyard.contracts import Issue
from blockyard.errors import near


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
    ordered = sort_overrides(overrides, folders, issues, multirun)
    groups, replaced = presets.expand(ordered.groups, folders)
    hydra = HydraConfig(groups, replaced, folders)
    of_base: list[Issue] = []  # those of values that the overrides do not replace are found again
    base, choices = hydra.compose([], of_base)
    if not base:  # Hydra could not compose at all and has reported the reason
        return Composed({}, {}, folders, [*issues, *of_base])
    replaced_choices.remove_options(base, choices, folders)
    # Options that list nested choices come first: they decide which options there are.
    listing = {f"{nested.key}.{nested.names}" for nested in nested_choices.nested_choices(base)}
    early = [f"++{key}={value}" for key, value in ordered.values if key in listing]
    if early:
        base = hydra.compose(early, [])[0] or base
        replaced_choices.remove_options(base, choices, folders)
    nested_choices.fill(base, folders)
    retarget(base, ordered.values)
    known_keys = KnownKeys(base, choices, allowed_packages(ordered.values), folders)
    values = []
    for key, value in ordered.values:
        issue = known_keys.issue(key, value)
        issues += [issue] if issue else []
        values += [] if issue else [f"++{key}={value}"]
    issues += [] if values else of_base
    config = hydra.compose(values, issues)[0] if values else base
    if not config:
        return Composed({}, {}, folders, issues)
    replaced_choices.remove_options(config, choices, folders)
    _delete(config, ordered.deleted, issues)
    retarget(config, ordered.values, keep_typed=True)
    complete(config, folders)
    record_files(config, issues)
    if config.get("name") is None:
        config["name"] = _default_name(choices)
    starting_weights.resolve(config, choices, issues)
    matched = size_matching.solve(config, {key for key, _ in ordered.values}, issues)
    return Composed(config, choices, folders, issues, matched)


def _delete(config: Config, keys: Sequence[str], issues: list[Issue]) -> None:
    """Remove callbacks, the one family that is a collection."""
    callbacks = config["callbacks"]
    for key in keys:
        if key == "callbacks":
            callbacks.clear()
            continue
        name = key.partition(".")[2]
        if name not in callbacks:
            issues.append(
                Issue(
                    key,
                    "cannot be deleted: unknown callback",
                    [f"~callbacks.{each}" for each in near(name, callbacks)],
                )
            )
        callbacks.pop(name, None)


def complete(config: Config, folders: tuple[Path, ...] = ()) -> None:
    """Write the default of every option that a node leaves out into the config, so that a frozen config is whole."""
    nested_choices.fill(config, folders)
    for name, option in options(Root).items():
        if option.default is not REQUIRED:
            config.setdefault(name, list(option.default) if isinstance(option.default, tuple) else option.default)
    allow = allow_of(config)
    for place in list(placed_nodes(config, allow)):
        node = place.node
        for name, option in place.options(allow).items():
            if option.default is not REQUIRED and name not in node:
                default = _plain(option.default)
                # A library's class may have a default that no YAML can hold, such as a device: it stays unwritten.
                if default is None or isinstance(default, bool | int | float | str | list | dict):
                    node[name] = default


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
