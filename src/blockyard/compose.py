"""Command line to config: Hydra composes, we judge each override first, so that all problems show at once.

Hydra accepts `model.attention=gqa` (the sub-config becomes a string) and `+typo=1` (a dead key) and
stops at its first error. Here every override is parsed by Hydra's own parser, sorted into choices
(`block=pre_norm`) and values (`model.dim=64`), and compared with the tree and the signatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard import catalog
from blockyard.contracts import Issue
from blockyard.overrides import allow_of, known, nodes, sort
from blockyard.schema import REQUIRED, Root, allowed, locate, options


@dataclass
class Composed:
    """A resolved config as plain data, the choice made in each family, and every problem found."""

    config: dict[str, Any]
    choices: dict[str, str | None]
    folders: tuple[Path, ...] = ()  # the user's own config folders
    issues: list[Issue] = field(default_factory=list)


def compose(overrides: Sequence[str], config_dirs: Iterable[str] = ()) -> Composed:
    """The config of a command line. Problems are collected, never raised."""
    issues: list[Issue] = []
    searched = [word.partition("=")[2] for word in overrides if word.startswith("hydra.searchpath=")]
    folders = tuple(_existing([*config_dirs, *(p for text in searched for p in _paths(text))], issues))
    if issues:  # a folder that cannot be trusted is not composed from
        return Composed({}, {}, (), issues)
    sorted_ = sort([word for word in overrides if not word.startswith("hydra.searchpath=")], folders, issues)
    hydra = [*sorted_.hydra, *_searchpath(folders)]
    base, choices = _compose([*sorted_.groups, *hydra], issues)
    if not base:  # Hydra could not compose at all, and has said why
        return Composed({}, {}, folders, issues)
    if base.get("allow"):
        issues.append(Issue("allow", "is taken from the command line only, not from a file", ["allow=[mypackage]"]))
    allow = allow_of(sorted_.values)
    good = [f"++{key}={value}" for key, value in sorted_.values if known(key, value, base, allow, folders, issues)]
    config = _compose([*sorted_.groups, *hydra, *good], issues)[0] if good else base
    if not config:
        return Composed({}, {}, folders, issues)
    complete(config)
    config["name"] = config.get("name") or choices.get("experiment") or _default_name(choices)
    return Composed(config, choices, folders, issues)


def complete(config: dict[str, Any]) -> None:
    """Fill in every option that a node leaves to its default, so that a frozen config says all."""
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


def _existing(config_dirs: Iterable[str], issues: list[Issue]) -> list[Path]:
    folders = []
    for given in config_dirs:
        folder = Path(given).expanduser().resolve()
        if folder.is_dir():
            folders.append(folder)
            _refuse_alias_bombs(folder, issues)
        else:
            issues.append(Issue("--config-dir", f"{given} is no folder"))
    return folders


def _refuse_alias_bombs(folder: Path, issues: list[Issue]) -> None:
    """Aliases of aliases expand without end; a config has no use for more than a few."""
    import yaml

    for path in folder.rglob("*.yaml"):
        try:
            # Events, not objects: nothing is expanded yet.
            count = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(path.read_text(encoding="utf-8")))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            issues.append(Issue(str(path), f"is no readable YAML: {str(error).splitlines()[0]}"))
            continue
        if count > 20:
            issues.append(Issue(str(path), f"holds {count} YAML aliases, at most 20 are read"))


def _paths(text: str) -> list[str]:
    return [part.strip(" '\"").removeprefix("file://") for part in text.strip("[]").split(",") if part.strip()]


def _searchpath(folders: tuple[Path, ...]) -> list[str]:
    return [f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in folders)}]"] if folders else []


def _compose(overrides: list[str], issues: list[Issue]) -> tuple[dict[str, Any], dict[str, str | None]]:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
            composed = hydra_compose("config", overrides=overrides, return_hydra_config=True)
        choices = {k: v for k, v in composed.hydra.runtime.choices.items() if k in catalog.families()}
        tree = OmegaConf.to_container(
            OmegaConf.masked_copy(composed, [k for k in composed if k != "hydra"]), resolve=True
        )
    except (HydraException, OmegaConfBaseException) as error:
        issues.append(Issue("config", " ".join(str(error).split())))
        return {}, {}
    return dict(tree), dict(choices)  # type: ignore[arg-type]


def _default_name(choices: dict[str, str | None]) -> str:
    return "_".join(str(choices[key]) for key in ("model", "data") if choices.get(key)) or "run"


def _plain(value: Any) -> Any:
    from dataclasses import asdict, is_dataclass

    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return list(value) if isinstance(value, tuple) else value
