"""The config of a command line: what Hydra composes from its choices, with values set in it, as plain data."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from blockyard.config import catalog, interpolations, presets, user_folders, user_yaml
from blockyard.config.hydra_compose import Choices, Config, Reaching, compose_choices
from blockyard.config.literal_values import assign, literals
from blockyard.config.override_grammar import parse_override
from blockyard.contracts import Issue
from blockyard.errors import shortened

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass
class HydraConfig:
    """The config that Hydra composes from the choices of a command line.

    groups: `family=name`, those of a preset too; replaced: families whose choice differs from the preset's
    folders: the user's own config folders
    """

    groups: list[str]
    replaced: list[str]
    folders: tuple[Path, ...] = ()

    def compose(self, values: Sequence[str], issues: list[Issue]) -> tuple[Config, Choices]:
        """The resolved config with values (`++key=value`) set in it; empty where that fails, with an issue."""
        if not values and not self.folders and not self.replaced:
            pickled, choices, new_issues = _of_choices(tuple(self.groups))
            issues += new_issues
            return pickle.loads(pickled), dict(choices)
        if not self.folders and not self.replaced and (assignments := literals(values)) is not None:
            pickled, choices, group_issues = _of_choices(tuple(self.groups))
            config = pickle.loads(pickled)
            if config and not group_issues and _is_literal(tuple(self.groups)) and assign(config, assignments):
                return config, dict(choices)
        config, choices = _resolved(self.groups, self.folders, values, issues)
        if config and self.replaced:  # the preset's options do not apply to what replaces its choice
            own = [group for group in self.groups if not group.startswith(f"{presets.FAMILY}=")]
            again: list[Issue] = []
            bare = _resolved(own, self.folders, values, again)[0]
            issues += [issue for issue in again if issue not in issues]
            config |= {family: bare[family] for family in self.replaced if family in bare}
        return config, choices


def _resolved(
    groups: Sequence[str], folders: tuple[Path, ...], values: Sequence[str], issues: list[Issue]
) -> tuple[Config, Choices]:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    # The user's own files may change while this process runs; the package's do not.
    composed_by_hydra = compose_choices.__wrapped__ if folders else compose_choices
    try:
        named = [_as_hydra_names_it(group) for group in groups]
        pickled, choices = composed_by_hydra((*named, *user_folders.searchpath(folders)))
        config: DictConfig = pickle.loads(pickled)
        # What cannot be set is left out, so that the other problems are found too.
        issues += [issue for value in values for issue in _set(config, value)]
        if problems := list(interpolations.problems(config)):
            issues += problems
            return {}, {}
        return _plain(config, issues), dict(choices)
    except Reaching as reaching:
        issues.append(reaching.issue)
    except user_yaml.UnsafeFile as unsafe:
        issues.append(Issue(str(unsafe.path), unsafe.reason))
    except RecursionError:
        issues.append(Issue("config", "a defaults list or an interpolation leads back to itself"))
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        issues.append(Issue("config", _one_line(error)))
    return {}, {}


@lru_cache(maxsize=256)
def _of_choices(groups: tuple[str, ...]) -> tuple[bytes, Choices, list[Issue]]:
    """The resolved config of the package's own choices, pickled, with their issues: that of every arm of a sweep in
    which only values differ.
    """
    issues: list[Issue] = []
    config, choices = _resolved(groups, (), [], issues)
    return pickle.dumps(config), choices, issues


@lru_cache(maxsize=256)
def _is_literal(groups: tuple[str, ...]) -> bool:
    """Whether the package's own choices use no interpolation, so that setting a value changes nothing else."""
    pickled, _ = compose_choices(tuple(_as_hydra_names_it(group) for group in groups))
    return b"${" not in pickled


def _plain(config: DictConfig, issues: list[Issue]) -> Config:
    """The resolved config as plain data. A value that names an absent key is left out with an issue, so that the other
    problems are found too.
    """
    from omegaconf import DictConfig, OmegaConf, open_dict
    from omegaconf.errors import InterpolationKeyError

    while True:
        try:
            return cast("Config", OmegaConf.to_container(config, resolve=True))
        except InterpolationKeyError as error:
            key = str(error.full_key)
            above, _, last = key.rpartition(".")
            parent = OmegaConf.select(config, above) if above else config
            if not isinstance(parent, DictConfig) or last not in parent:
                raise
            with open_dict(parent):
                value = parent._get_node(last)._value()  # type: ignore[union-attr]
                del parent[last]
            issues.append(Issue(key, f"{shortened(str(value))} names a key that this config does not have"))


def _as_hydra_names_it(group: str) -> str:
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
        OmegaConf.update(config, override.key_or_group, override.value(), merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError) as error:
        yield Issue(key.lstrip("+"), f"{shortened(value)} cannot be set ({_one_line(error)})")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
