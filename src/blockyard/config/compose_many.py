"""`compose` for many command lines of one project: the same configs, Hydra asked once per choice.

Hydra takes a tenth of a second for a config, most of it for reading YAML. But what a family's choice
gives does not depend on the choices of other families, except on those that write everywhere
(experiment, debug). So each choice is composed once beside those, and a command line's config is put
together from such parts; values are then set as Hydra sets them. Wherever a YAML or a value may reach
further (interpolations, packages, nested defaults, items of lists), `compose` itself is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blockyard.config import catalog, presets, size_matching, user_folders
from blockyard.config.compose import Composed, _compose, _default_name, _searchpath, complete, compose
from blockyard.config.nested_choices import drawers
from blockyard.config.overrides import allow_of, known, sort_overrides
from blockyard.contracts import Issue

EVERYWHERE = ("experiment", "preset", "debug")  # their YAMLs set values of any family


class _Odd(Exception):  # noqa: N818 - no error: a value or a YAML that only Hydra can judge
    """A command line that is for `compose`."""


@dataclass(frozen=True)
class _Word:
    """One override, read once. value: as Hydra reads it; odd: only Hydra can set it."""

    issues: tuple[Issue, ...]
    group: tuple[str, str] | None = None
    key: str = ""
    text: str = ""
    value: Any = None
    odd: bool = False


@dataclass
class Composer:
    """Composes command lines that share the user's config folders. `compose(words)` is its only method."""

    config_dirs: Sequence[str] = ()
    _words: dict[str, _Word] = field(default_factory=dict)
    _parts: dict[tuple[tuple[str, str], ...], tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    _bases: dict[tuple[tuple[str, str], ...], tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    _plain: dict[tuple[str, str], bool] = field(default_factory=dict)
    _inside: dict[tuple[str, str], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folders, self._problems = user_folders.folders(self.config_dirs, ())

    def compose(self, words: Iterable[str]) -> Composed:
        """What `compose(words, config_dirs)` gives, problems included."""
        words = list(words)
        try:
            if self._problems:
                raise _Odd
            return self._quickly([self._word(text) for text in words])
        except _Odd:
            return compose(words, self.config_dirs)

    def _quickly(self, words: list[_Word]) -> Composed:
        issues = [issue for word in words for issue in word.issues]
        groups = tuple(dict(word.group for word in words if word.group).items())
        if any(family == presets.FAMILY for family, _ in groups):
            raise _Odd  # it gives way to choices beside it
        if groups not in self._bases:
            self._bases[groups] = self._base(dict(groups))
        base, choices = self._bases[groups]
        if base.get("allow") or drawers(base):
            raise _Odd
        allow = allow_of([(word.key, word.text) for word in words if word.key])
        config = _copied(base)
        for word in words:
            if word.key and known(word.key, word.text, base, allow, self.folders, issues):
                _set(config, word)
        complete(config)
        config["name"] = config.get("name") or _default_name(choices)
        matched = size_matching.solve(config, {word.key for word in words}, issues)
        return Composed(config, dict(choices), self.folders, issues, matched)

    def _word(self, text: str) -> _Word:
        if text not in self._words:
            self._words[text] = self._read(text)
        return self._words[text]

    def _read(self, text: str) -> _Word:
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException

        if text.lstrip("+~").startswith("hydra"):
            raise _Odd
        issues: list[Issue] = []
        sorted_ = sort_overrides([text], self.folders, issues)
        if sorted_.groups:
            family, _, choice = sorted_.groups[0].partition("=")
            return _Word(tuple(issues), group=(family, choice))
        if not sorted_.values:
            return _Word(tuple(issues))
        key, value = sorted_.values[0]
        try:
            read = OverridesParser.create().parse_override(f"++{key}={value}").value()
        except HydraException as error:
            raise _Odd from error
        odd = _is_odd(read) or re.fullmatch(r"[\w-]+(\.[\w-]+)*", key) is None
        return _Word(tuple(issues), key=key, text=value, value=read, odd=odd)

    def _base(self, groups: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The config of choices alone."""
        beside = {f: choice for f, choice in groups.items() if f in EVERYWHERE or not self._is_plain(f, choice)}
        root, chosen = self._hydra(beside)
        others = {f: str(choice) for f, choice in chosen.items() if choice is not None and f not in beside}
        if not all(self._is_plain(f, choice) for f, choice in others.items() if f not in EVERYWHERE):
            raise _Odd
        if not all(self._reaches_in_only(f, chosen[f]) for f in {*beside, *EVERYWHERE} if chosen.get(f)):
            raise _Odd
        config, choices = dict(root), dict(chosen)
        for family, choice in groups.items():
            if family not in beside:
                part, picked = self._hydra(beside | {family: choice})
                config[family], choices[family] = part[family], picked[family]
        return config, choices

    def _hydra(self, groups: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
        key = tuple(sorted(groups.items()))
        if key not in self._parts:
            issues: list[Issue] = []
            words = [f"{family}={choice}" for family, choice in groups.items()]
            composed = _compose([*words, *_searchpath(self.folders)], issues)
            if issues or not composed[0]:
                raise _Odd
            self._parts[key] = composed
        return self._parts[key]

    def _is_plain(self, family: str, choice: str) -> bool:
        """Whether a choice's YAML is its family's node and nothing else."""
        key = (family, choice)
        if key not in self._plain:
            text = self._text(family, choice)
            self._plain[key] = not re.search(r"\$\{|@package|^defaults\s*:", text, re.MULTILINE)
        return self._plain[key]

    def _reaches_in_only(self, family: str, choice: str) -> bool:
        """Whether a YAML with a defaults list only picks plain choices, and refers to no value."""
        key = (family, choice)
        if key not in self._inside:
            self._inside[key] = self._picks_only(family, choice)
        return self._inside[key]

    def _picks_only(self, family: str, choice: str) -> bool:
        import yaml

        text = self._text(family, choice)
        if "${" in text:
            return False
        for entry in (yaml.safe_load(text) or {}).get("defaults", ()):
            if entry == "_self_":
                continue
            if isinstance(entry, str):  # a neighbour, whose content comes first
                if family in EVERYWHERE or not self._is_plain(family, entry):
                    return False
                continue
            ((name, picked),) = entry.items()
            other = str(name).removeprefix("override /")
            if other == name or other not in catalog.families() or other in EVERYWHERE:
                return False
            if not self._is_plain(other, str(picked)):
                return False
        return True

    def _text(self, family: str, choice: str) -> str:
        for root in (catalog.conf_dir(), *self.folders):
            path = Path(root) / family / f"{choice}.yaml"
            if path.is_file():
                return path.read_text(encoding="utf-8")
        raise _Odd


def _is_odd(value: Any) -> bool:
    if isinstance(value, str):
        return any(sign in value for sign in "$\\") or value == "???"
    if isinstance(value, list):
        return any(isinstance(item, list | dict) or _is_odd(item) for item in value)
    return not (value is None or isinstance(value, bool | int | float))


def _set(config: dict[str, Any], word: _Word) -> None:
    """Set a value as OmegaConf's `update` does."""
    if word.odd:
        raise _Odd
    *path, last = word.key.split(".")
    node: Any = config
    for part in path:
        inner = node.get(part)
        if isinstance(inner, list):
            raise _Odd
        if not isinstance(inner, dict):
            inner = node[part] = {}
        node = inner
    if isinstance(word.value, list) and isinstance(node.get(last), dict):
        raise _Odd
    node[last] = _copied(word.value)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
