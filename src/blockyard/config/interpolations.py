"""Resolves `${...}` in a config, and bounds the size of the result before OmegaConf resolves it.

A chain of texts, each with two interpolations of the next, takes exponential time and memory. An interpolation
names one key (`${model.dim}`, `${.sibling}`) or one environment variable (`${oc.env:NAME}`). Then the size of the
result can be computed without expanding it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from blockyard.config.tree import Node
from blockyard.contracts import Issue
from blockyard.errors import first_line, shortened

if TYPE_CHECKING:
    from omegaconf import DictConfig

LARGEST = 1_000_000  # characters and values of a resolved config
_ONE = re.compile(r"\$\{([^${}]*)\}")
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\\$\{")  # an odd number of backslashes in front, as OmegaConf reads it
_RESOLVER = re.compile(r"\s*oc\.env\s*:")

Path = tuple[str, ...]


class _UnboundedError(ValueError):
    pass


def resolve(config: Node, issues: list[Issue]) -> Node:
    """Return a config with its interpolations resolved; {} with an issue where they are refused.

    An option that names an absent key is left out with an issue, so that the other problems are found too. Raises
    OmegaConf's errors.
    """
    refused = list(problems(config))
    if refused:
        issues += refused
        return {}
    # OmegaConf takes a hundred times longer than the rest of composing, and most configs have nothing for it to do.
    if not _is_interpolated(config):
        return config
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError

    unresolved: DictConfig = OmegaConf.create(config)
    # OmegaConf stops at its first error. Each round leaves one option out, so that there are no more than options.
    while True:
        try:
            return cast("Node", OmegaConf.to_container(unresolved, resolve=True))
        except InterpolationKeyError as error:
            issues.append(_without_option(unresolved, str(error.full_key), error))


def check_grammar(value: Any) -> None:
    """Raise ValueError where OmegaConf cannot read a text in a value."""
    if not _is_interpolated(value):
        return
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError

    try:
        OmegaConf.create([value])
    except GrammarParseError as error:
        raise ValueError(first_line(error)) from error


def problems(config: Any) -> Iterator[Issue]:
    """Yield an issue if the config's interpolations have another form, lead in a circle, or expand without end.

    config: plain data, unresolved
    """
    try:
        if _size(config, (), config, {}) > LARGEST:
            raise _UnboundedError("its interpolations expand to more than a million values")
    except _UnboundedError as refused:
        yield Issue("config", str(refused))


def _is_interpolated(value: Any) -> bool:
    """Return whether OmegaConf reads more into a text: an interpolation, or an escaped one."""
    if isinstance(value, dict):
        return any(map(_is_interpolated, value.values()))
    if isinstance(value, list):
        return any(map(_is_interpolated, value))
    return isinstance(value, str) and "${" in value


def _without_option(config: DictConfig, key: str, error: Exception) -> Issue:
    """Remove an option in place and return its issue. Raises `error` where the config has no such option."""
    from omegaconf import DictConfig, OmegaConf, open_dict

    above, _, last = key.rpartition(".")
    parent = OmegaConf.select(config, above) if above else config
    if not isinstance(parent, DictConfig) or last not in parent:
        raise error
    with open_dict(parent):
        value = str(parent._get_node(last)._value())  # type: ignore[union-attr]
        del parent[last]
    text = f"{shortened(value)} names a key that this config does not have; \\${{ stands for ${{ itself"
    literal = value.replace("${", "\\${")
    return Issue(key, text, [f"'{key}={literal}'"])


def _size(value: Any, path: Path, root: Any, sizes: dict[Path, int | None]) -> int:
    """Return the size of a value once it is resolved: characters and values.

    sizes: known sizes of interpolated texts by path; None while one is computed, so that a circle is seen
    """
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return 1 + sum(_size(item, (*path, str(key)), root, sizes) for key, item in items)
    if not isinstance(value, str):
        return 1
    text = _ESCAPED.sub("$ ", value)  # the $ keeps an interpolation around it from being taken for a simple one
    if "${" not in text:
        return 1 + len(value)
    if path in sizes:
        resolved = sizes[path]
        if resolved is None:
            raise _UnboundedError(f"{'.'.join(path)}: {value!r} leads back to itself")
        return resolved
    sizes[path] = None
    names = _ONE.findall(text)
    if len(names) != text.count("${") or any(":" in name and not _RESOLVER.match(name) for name in names):
        raise _UnboundedError(
            f"{'.'.join(path)}: {value[:80]!r} is not allowed; an interpolation names one key, such as "
            "${model.dim}, or a variable, ${oc.env:NAME}, and \\${ stands for ${ itself"
        )
    targets = [_target(name.strip(), path) for name in names if ":" not in name]
    sizes[path] = size = len(value) + sum(_size(_at(target, root), target, root, sizes) for target in targets)
    if size > LARGEST:
        raise _UnboundedError(f"{'.'.join(path)}: {value[:80]!r} expands to more than a million values")
    return size


def _target(name: str, path: Path) -> Path:
    """Return the key that an interpolation at a path names; leading dots go up from its parent."""
    inner = name.lstrip(".")
    levels = len(name) - len(inner)
    parts = tuple(part for part in re.split(r"[.\[\]]", inner) if part)
    return (*path[: max(len(path) - levels, 0)], *parts) if levels else parts


def _at(path: Path, root: Any) -> Any:
    """Return the value at a path; None where there is none. OmegaConf reports that."""
    value = root
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value
