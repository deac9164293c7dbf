"""The identity of a config: a hash of everything in it that changes the computation.

Excluded are the seed (it numbers the replicates of an arm), names and tags, the output folder, loggers, and every
option that its class lists in `incidental` (workers, devices, refresh rates, where downloaded data lie); a class that
only observes lists "*" and is excluded as a whole. An option equal to its default hashes like an absent one, so that a
class can gain an option without changing the identity of old runs; one that is a mapping of fields (`model.prefix`,
`init.lora`) is hashed with all of them. If an option has two names for a value, such as true and
head, its class lists in `same_values` the one that is hashed. The order of keys does not matter.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import math
import re
import unicodedata
from functools import lru_cache
from typing import Any

from blockyard.config.choices.catalog import option_name
from blockyard.config.tree import Node
from blockyard.config.untrusted.targets import TRUSTED_PACKAGES, own_packages
from blockyard.runs.redact import redact, redact_text

# Naming, output location and logging of a run.
INCIDENTAL = frozenset(
    {"seed", "name", "tags", "outputs", "force", "allow", "logger", "executor", "experiment", "preset", "hydra"}
    | {"run", "resume", "group", "job_type", "notes"}
)
_WIRING = frozenset({"_partial_", "_recursive_", "_convert_"})
_SLUG = 48


def identity(config: Node) -> str:
    """The first 10 hex digits of the SHA-256 of the semantic part of a complete, plain config."""
    text = json.dumps(semantic(config), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def semantic(config: Node) -> Node:
    """Return the part of `config` that changes the computation, in canonical form."""
    # An identity must not reveal a secret, nor depend on the environment.
    config = redact(config, environment=False)
    packages = (*TRUSTED_PACKAGES, *own_packages(config.get("allow") or ()))
    kept = {key: _node(value, packages) for key, value in config.items() if key not in INCIDENTAL}
    return {key: value for key, value in kept.items() if value not in (None, {}, [])}


def run_name(config: Node) -> str:
    """Return the folder name of an arm: a readable label and the identity, safe as a file name."""
    name = config.get("name")
    label = slug(redact_text(str(name))) if name else ""
    return f"{label or _label(config)}-{identity(config)}"


def slug(name: str | None) -> str:
    """`name` as part of a file name; if characters were dropped, 4 hex digits keep names distinct."""
    if not name:
        return ""
    text = unicodedata.normalize("NFC", str(name))
    clean = re.sub(r"[^\w.-]+", "-", text)
    clean = re.sub(r"\.{2,}", ".", clean).strip("-._")
    short = clean.encode()[:_SLUG].decode(errors="ignore").strip("-._")
    if short == text:
        return short
    return f"{short or 'run'}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:4]}"


def _label(config: Node) -> str:
    labels = []
    for family in ("data", "token_mixer", "position"):
        node = config.get(family)
        target = str(node.get("_target_", "")) if isinstance(node, dict) else ""
        if "." in target:  # the module is named after its mechanism
            labels.append(slug(target.split(".")[-2]))
    return "-".join(filter(None, labels)) or "run"


def _node(value: Any, packages: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        target = value.get("_target_")
        defaults, incidental, same = _declared(str(target), packages) if target else ({}, frozenset(), {})
        if "*" in incidental:  # it only observes
            return None
        kept = {}
        for key, item in value.items():
            if key in _WIRING or key in incidental:
                continue
            plain = _node(item, packages)
            if isinstance(plain, str):
                plain = same.get(key, {}).get(plain, plain)
            if plain is None and isinstance(item, dict):
                continue
            # An option at its default counts like an absent one: a class may gain options without new identities.
            if key in defaults and plain == _node(defaults[key], packages):
                continue
            kept[str(key)] = plain
        return kept
    if isinstance(value, list | tuple):
        return [_node(item, packages) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_node(item, packages) for item in value)
    if isinstance(value, float):
        # 1 and 1.0 are the same value, and `repr` gives back the same float.
        if math.isfinite(value) and value.is_integer():
            return int(value)
        return repr(value)
    if value is None or isinstance(value, str | int):  # a bool stays one: JSON tells true from 1
        return value
    return str(value)


@lru_cache(maxsize=512)
def _declared(
    target: str, packages: tuple[str, ...]
) -> tuple[dict[str, Any], frozenset[str], dict[str, dict[str, Any]]]:
    """Return defaults, incidental options and other names of values of a target; empty for one outside `packages`."""
    if target.split(".")[0] not in packages:
        return {}, frozenset(), {}
    module, _, name = target.rpartition(".")
    try:
        component = getattr(importlib.import_module(module), name)
        parameters = inspect.signature(component).parameters.values()
    except (ImportError, AttributeError, TypeError, ValueError):
        return {}, frozenset(), {}  # `check` reports a missing target
    defaults = {option_name(p.name): p.default for p in parameters if p.default is not inspect.Parameter.empty}
    same = getattr(component, "same_values", {})
    return defaults, frozenset(getattr(component, "incidental", frozenset())), same
