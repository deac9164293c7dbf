"""What Hydra composes from choices alone, and the keys that files may not reach.

Files of a user's own config folder may come from a stranger. Keys under `hydra` name callbacks, launchers and logging
classes that Hydra's application calls, and `allow` names packages that are imported. However a file reaches them
(a package, an escape, an alias, a link, a defaults list), the composed values differ from the shipped ones, and such
a config is refused before anything is called or imported.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from blockyard.config import catalog, user_folders, user_yaml
from blockyard.contracts import Issue

if TYPE_CHECKING:
    from omegaconf import DictConfig


ALLOW = Issue("allow", "is taken from the command line only, not from a file", ["allow=[mypackage]"])
# What Hydra itself fills in while it composes.
_FILLED = {"overrides", "runtime", "searchpath"}


class Reaching(ValueError):  # noqa: N818 - it is reported, not raised to a caller
    """Files changed keys that they may not change."""

    def __init__(self, issue: Issue) -> None:
        super().__init__(str(issue))
        self.issue = issue


@lru_cache(maxsize=256)
def compose_choices(overrides: tuple[str, ...]) -> tuple[bytes, Choices]:
    """The config of choices alone, unresolved and pickled, and the choice of each family. Takes about 0.1 s."""
    from omegaconf import OmegaConf

    single, several = _apart(overrides)
    composed = _compose(single)
    for family, names in several.items():
        _use_together(composed, family, [_compose((*single, f"{family}={name}"))[family] for name in names], names)
    if any(override.startswith(user_folders.KEY) for override in overrides):
        _refuse_reaching(composed)
    chosen = {str(key).rpartition("@")[2]: name for key, name in composed.hydra.runtime.choices.items()}
    families = (*catalog.families(), *(key for key in catalog.OF_SOURCE if chosen.get(key)))
    choices = {family: chosen[family] for family in families if family in chosen}
    choices |= {family: ",".join(names) for family, names in several.items()}
    config = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
    return pickle.dumps(config), choices


def _apart(overrides: Sequence[str]) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The overrides without those that name several choices of a family, `logger=[tensorboard,wandb]`, and these."""
    several = {}
    for override in overrides:
        family, _, names = override.partition("=")
        if family in catalog.SEVERAL:
            several[family] = names.strip("[]").split(",") if names.startswith("[") else []
    named = {family: names for family, names in several.items() if names}
    return tuple(each for each in overrides if each.partition("=")[0] not in named), named


def _use_together(composed: DictConfig, family: str, nodes: Sequence[DictConfig], names: Sequence[str]) -> None:
    """Put several choices of a family into a config: loggers under their names, callbacks as one collection."""
    from omegaconf import OmegaConf, open_dict

    plain = [cast("Config", OmegaConf.to_container(node, resolve=False)) for node in nodes]
    merged: Config = {}
    for name, node in zip(names, plain, strict=True):
        merged |= node if family == "callbacks" else {name: node}
    with open_dict(composed):
        composed[family] = merged


def _compose(overrides: Sequence[str]) -> DictConfig:
    """The config with Hydra's own keys. Hydra reads files here; it configures and calls nothing."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from blockyard.config.package_files import use_package_files

    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
        use_package_files()
        return hydra_compose("config", overrides=list(overrides), return_hydra_config=True)


def _refuse_reaching(composed: DictConfig) -> None:
    """Raise Reaching where files have set `allow`, or keys of Hydra itself."""
    from omegaconf import OmegaConf

    if OmegaConf.to_container(composed, resolve=False).get("allow") not in ([], None):  # type: ignore[union-attr]
        raise Reaching(ALLOW)
    own, keys = _own_keys(), _hydra_keys(composed)
    changed = sorted(name for name in own.keys() | keys.keys() if own.get(name) != keys.get(name))
    if changed:
        raise Reaching(Issue(f"hydra.{changed[0]}", f"a file of --config-dir {user_yaml.HYDRA}"))


@lru_cache(maxsize=1)
def _own_keys() -> dict[str, Any]:
    return _hydra_keys(_compose(()))


def _hydra_keys(composed: DictConfig) -> dict[str, Any]:
    """Hydra's own keys as plain data, without what it fills in from the command line."""
    from omegaconf import OmegaConf

    keys = cast("Config", OmegaConf.to_container(composed.hydra, resolve=False))
    job = {name: value for name, value in keys["job"].items() if name not in ("override_dirname", "name")}
    return {name: value for name, value in keys.items() if name not in _FILLED} | {"job": job}


Config = dict[str, Any]
Choices = dict[str, str | None]
