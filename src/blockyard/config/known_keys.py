"""Checks that a value override names an existing option, or suggests the nearest one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.config import catalog, lightning, size_matching, synonyms, tree
from blockyard.config.schema import RESERVED, Root, options
from blockyard.config.targets import allowed, locate
from blockyard.contracts import Issue
from blockyard.errors import did_you_mean, fold, near


@dataclass(frozen=True)
class KnownKeys:
    """The keys that overrides of one config may set.

    config: composed of choices alone; choices: the name chosen in each family
    allow: the packages that the command line allows; folders: the user's own config folders
    """

    config: dict[str, Any]
    choices: dict[str, str | None]
    allow: list[str]
    folders: tuple[Path, ...] = ()

    def issue(self, key: str, value: str) -> Issue | None:
        """Why `key=value` cannot be set, or None where the key is an option."""
        family, *rest = key.split(".")
        if family in catalog.OUTSIDE_RUN:
            return Issue(key, "is not part of a run; `blockyard sweep` takes it")
        if not rest:
            return None if key in options(Root) else self._unknown_root_key(key, value)
        if family == size_matching.KEY:
            allowed_keys = [f"{size_matching.KEY}.{name}" for name in size_matching.KEYS]
            return None if key in allowed_keys else Issue(key, "unknown config key", allowed_keys)
        if family not in catalog.run_keys():
            other = synonyms.family_for(family)
            hint = f"; did you mean {other}?" if other else did_you_mean(family, catalog.run_keys())
            text = f"unknown config key; {family!r} is not a family{hint}"
            return Issue(key, text, see="`blockyard list`", unknown=True)
        return self._option_issue([family, *rest], value)

    def _unknown_root_key(self, key: str, value: str) -> Issue:
        hints = self._elsewhere(key) or self._chosen(key, value)
        missing = synonyms.absent(key)
        if missing and not hints:
            return Issue(key, f"unknown config key; {missing}", unknown=True)
        hints = hints or near(key, [*options(Root), *catalog.run_keys()])
        return Issue(key, "unknown config key", hints, unknown=True)

    def _chosen(self, key: str, value: str) -> list[str]:
        """A family by the name it has elsewhere, `scheduler=cosine`, or a choice as a switch, `wandb=true`."""
        family = synonyms.family_for(key)
        if family:
            known = value in catalog.choices(family, self.folders)
            named_so = synonyms.choices_for(value, family)
            return [f"{family}={value}"] if known else named_so or [f"{family}=NAME"]
        return synonyms.meant(
            key, [(family, list(catalog.choices(family, self.folders))) for family in catalog.groups()]
        )

    def _option_issue(self, path: list[str], value: str) -> Issue | None:
        key, family = ".".join(path), path[0]
        depth, node = tree.deepest_node(self.config, path)
        if node is None:
            return Issue(key, f"{family} has no such part", self._dot_hint(path, value) or self._parts(family))
        rest = path[depth:]
        if rest == ["_target_"]:
            return None  # checked with the whole config
        if not rest or rest[0] in RESERVED:
            return Issue(key, "cannot be overridden")
        declared = self._options(node)
        if rest[0] in declared:
            return None
        prefix = ".".join(path[:depth])
        synonymous = [
            option for option in synonyms.options_for(rest[0], prefix) if option.rpartition(".")[2] in declared
        ]
        spelling = [f"{prefix}.{name}" for name in near(rest[0], declared)]
        if prefix == "trainer" and rest[0] in lightning.PASSED_ON:
            spelling += [f"trainer.extra.{rest[0]}"]
        hint = self._dot_hint(path, value) or synonymous or spelling or self._elsewhere(rest[0])
        has = f"it has {fold(declared)}" if declared else "it has none"
        text = f"{prefix} ({node['_target_'].rsplit('.', 1)[-1]}) has no option {rest[0]!r}; {has}"
        see = self._explain(family) if declared and depth == 1 else ""
        return Issue(key, text, hint, see=see, unknown=depth == 1 and not self._exists(family, rest[0]))

    def _elsewhere(self, option: str) -> list[str]:
        """Options of this name that other parts of the config have, or options that others call so."""
        everywhere = [f"{name}.{option}" for name, node in tree.nodes(self.config) if option in self._options(node)]
        return everywhere or synonyms.options_for(option)

    def _exists(self, family: str, option: str) -> bool:
        """Whether any choice of a family has such an option."""
        choices = catalog.choices(family, self.folders).values()
        return any(option in self._options({"_target_": each.target}) for each in choices if each.target)

    def _explain(self, family: str) -> str:
        return f"`blockyard explain {family}={self.choices[family]}`" if self.choices.get(family) else ""

    def _options(self, node: dict[str, Any]) -> list[str]:
        target = str(node["_target_"])
        try:
            return list(options(locate(target))) if allowed(target, self.allow) else []
        except ValueError:
            return []

    def _parts(self, family: str) -> list[str]:
        node = self.config.get(family)
        return [f"{family}.{name}" for name in node] if isinstance(node, dict) else []

    def _dot_hint(self, path: list[str], value: str) -> list[str]:
        """What `position.rope=...` or `block.name=...` means: a dot written for the = of a choice."""
        family, name = path[:2]
        names = catalog.choices(family, self.folders)
        choice = next((text for text in (value, name) if text in names), None)
        if choice:
            return [f"{family}={choice}"]
        if name in catalog.run_keys() and value in catalog.choices(name, self.folders):
            return [f"{name}={value}"]
        return [f"{family}={other}" for other in near(value, names)] if name in ("name", "type") else []
