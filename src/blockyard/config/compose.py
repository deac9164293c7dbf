"""Command line to config: Hydra composes, we judge each override first, so that all problems show at once.

Hydra accepts `model.attention=gqa` (the sub-config becomes a string) and `+typo=1` (a dead key) and
stops at its first error. Here every override is parsed by Hydra's own parser, sorted into choices
(`block=pre_norm`) and values (`model.dim=64`), and compared with the tree and the signatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.config import catalog, presets, size_matching, user_folders
from blockyard.config.nested_choices import draw, drawers
from blockyard.config.overrides import allow_of, known, nodes, sort_overrides
from blockyard.config.schema import REQUIRED, Root, allowed, locate, options
from blockyard.contracts import Issue

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class Composed:
    """A resolved config as plain data, the choice made in each family, and every problem found."""

    config: dict[str, Any]
    choices: dict[str, str | None]
    folders: tuple[Path, ...] = ()  # the user's own config folders
    issues: list[Issue] = field(default_factory=list)
    matched: dict[str, Any] = field(default_factory=dict)  # the size that was solved for; see match.py


def compose(overrides: Sequence[str], config_dirs: Iterable[str] = (), *, multirun: bool = False) -> Composed:
    """The config of a command line, or of the first of several runs. Problems are collected, never raised."""
    issues: list[Issue] = []
    folders, problems = user_folders.folders(config_dirs, overrides)
    issues += [Issue(where, what) for where, what in problems]
    if issues:  # a folder that cannot be trusted is not composed from
        return Composed({}, {}, (), issues)
    words = [word for word in overrides if not word.startswith("hydra.searchpath=")]
    sorted_ = sort_overrides(words, folders, issues, multirun)
    hydra = [*sorted_.hydra, *_searchpath(folders)]
    groups, replaced = presets.expand(sorted_.groups, folders)
    base, choices = _put_together(groups, replaced, hydra, issues)
    if not base:  # Hydra could not compose at all, and has said why
        return Composed({}, {}, folders, issues)
    naming = {f"{drawer.key}.{drawer.names}" for drawer in drawers(base)}
    early = [f"++{key}={value}" for key, value in sorted_.values if key in naming]
    if early:  # what is drawn decides which options there are
        base = _put_together(groups, replaced, hydra, [], early)[0] or base
    draw(base, folders)
    if base.get("allow"):
        issues.append(Issue("allow", "is taken from the command line only, not from a file", ["allow=[mypackage]"]))
    allow = allow_of(sorted_.values)
    good = [f"++{key}={value}" for key, value in sorted_.values if known(key, value, base, allow, folders, issues)]
    config = _put_together(groups, replaced, hydra, issues, good)[0] if good else base
    if not config:
        return Composed({}, {}, folders, issues)
    complete(config, folders)
    config["name"] = config.get("name") or _default_name(choices)
    matched = size_matching.solve(config, {key for key, _ in sorted_.values}, issues)
    return Composed(config, choices, folders, issues, matched)


def complete(config: dict[str, Any], folders: tuple[Path, ...] = ()) -> None:
    """Fill in every option that a node leaves to its default, so that a frozen config says all."""
    draw(config, folders)
    for name, option in options(Root).items():
        if option.default is not REQUIRED:
            config.setdefault(name, list(option.default) if isinstance(option.default, tuple) else option.default)
    for _, node in nodes(config):
        target = str(node["_target_"])
        if not allowed(target, list(config.get("allow") or [])):
            continue
        try:
            legal = options(locate(target))
        except ValueError:
            continue  # the check says so
        for name, option in legal.items():
            if option.default is not REQUIRED and name not in node:
                node[name] = _plain(option.default)


def _searchpath(folders: tuple[Path, ...]) -> list[str]:
    return [f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders)}]"] if folders else []


def _put_together(
    groups: list[str], replaced: list[str], rest: list[str], issues: list[Issue], values: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """The tree of a command line; families that replace a preset's choice are as they are without it."""
    tree, choices = _compose([*groups, *rest], issues, values)
    if tree and replaced:
        bare = _compose(
            [*(word for word in groups if not word.startswith(f"{presets.FAMILY}=")), *rest], issues, values
        )
        tree |= {family: bare[0][family] for family in replaced if family in bare[0]}
    return tree, choices


def _compose(
    overrides: Sequence[str], issues: list[Issue], values: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Hydra's answer to choices, with values (`++key=value`) set in it as Hydra sets them."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # A user's files may change between two questions of one process; the package's own do not.
    asked = _asked.__wrapped__ if any(word.startswith("hydra.searchpath=") for word in overrides) else _asked
    try:
        found, choices = asked(tuple(overrides))
        tree = deepcopy(found) if values else found
        problems = [issue for word in values for issue in _set(tree, word)]
        if problems:
            issues += problems
            return {}, {}
        return dict(OmegaConf.to_container(tree, resolve=True)), dict(choices)  # type: ignore[arg-type]
    except (HydraException, OmegaConfBaseException) as error:
        issues.append(Issue("config", _line(error)))
        return {}, {}


def _set(tree: DictConfig, word: str) -> Iterator[Issue]:
    """Set the value of `++key=value` in place, or say why it cannot be."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    key, _, value = word.partition("=")
    try:
        override = OverridesParser.create().parse_override(word)
        OmegaConf.update(tree, override.key_or_group, override.value(), merge=True, force_add=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        yield Issue(key.lstrip("+"), f"{value} cannot be set ({_line(error)})")


@lru_cache(maxsize=256)
def _asked(overrides: tuple[str, ...]) -> tuple[DictConfig, dict[str, str | None]]:
    """What Hydra composes of choices, nothing resolved; a tenth of a second."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
        composed = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
    choices = {k: v for k, v in composed.hydra.runtime.choices.items() if k in catalog.families()}
    return OmegaConf.masked_copy(composed, [k for k in composed if k != "hydra"]), choices


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _default_name(choices: dict[str, str | None]) -> str:
    """The experiment and the preset; without an experiment the model, or the preset, and the data."""
    keys = (
        ("experiment", "preset")
        if choices.get("experiment")
        else ("preset" if choices.get("preset") else "model", "data")
    )
    return "_".join(str(choices[key]) for key in keys if choices.get(key)) or "run"


def _plain(value: Any) -> Any:
    from dataclasses import asdict, is_dataclass
    from functools import partial

    if isinstance(value, partial):  # a factory is written as the node that makes it
        named = {"_target_": f"{value.func.__module__}.{value.func.__qualname__}", "_partial_": True}
        return named | {name: _plain(each) for name, each in value.keywords.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value
