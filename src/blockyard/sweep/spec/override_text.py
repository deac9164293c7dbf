"""Checks the overrides in a sweep file, and writes YAML values as overrides."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from blockyard.config.override_grammar import to_text

# Keys that a sweep file must not set -> the reason, and the place where they are set instead.
RESERVED_KEYS = {
    "seed": "the sweep's `seeds:` sets it",
    "seeds": "it is a key of the file, and --seeds 5 on the command line",
    "arms": "it is a key of the file, and --arms a,b on the command line chooses among them",
    "outputs": "it is set on the command line, outputs=DIR",
    "allow": "packages are allowed on the command line only, 'allow=[mypackage]'",
    "force": "a sweep runs what is missing; --retry starts failed cells again",
    "resume": "a sweep resumes interrupted cells by itself",
    "run": "it names a finished run, for eval and generate",
    "executor": "it is set on the command line, --executor NAME",
    "hydra": "Hydra's own keys are not part of an experiment",
}
_SEED = re.compile(r"\$\{\s*seed\s*\}")
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9_.-]+")


def key_of(override: str) -> str:
    """Return the config key that an override sets."""
    return override.partition("=")[0].lstrip("+~")


def override_problem(override: Any, where: str) -> str | None:
    """Return why a sweep file must not contain an override, or None. `check` reports later whether the key exists."""
    if not isinstance(override, str):
        return f'{where}: {quote(override)} is not an override; write "key=value", such as model.dim=64'
    if "\n" in override or "\0" in override:
        return f"{where}: {override!r} spans several lines; an override is one line"
    if "=" not in override:
        return f"{where}: {override!r} has no value; write {override.strip() or 'key'}=VALUE"
    key = key_of(override)
    if not key or key.strip() != key:
        return f"{where}: {override!r} has no key; write key=value"
    if _SEED.search(override):
        return (
            f"{where}: {override!r} reads the seed, but an arm has one config for all its seeds; where an option can "
            "follow the run's seed, null says so (such as tokenizer.fit_seed=null)"
        )
    problem = key_problem(key)
    return f"{where}: {problem}" if problem else None


def key_problem(key: str) -> str | None:
    """Return why the overrides of a sweep file must not set a key, or None."""
    first = key.replace("/", ".").partition(".")[0]
    reason = RESERVED_KEYS.get(first)
    if reason:
        return f"{key} cannot be set here; {reason}"
    return None


def to_label(value: Any) -> str:
    """Return a value as part of an arm's name: short, and valid in a file name."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # with its sign
    if isinstance(value, dict):
        return "-".join(f"{to_label(str(key))}{to_label(item)}" for key, item in value.items()) or "empty"
    if isinstance(value, list):
        return "-".join(map(to_label, value)) or "empty"
    return _NOT_IN_LABELS.sub("-", value if isinstance(value, str) else to_text(value)).strip("-.") or "empty"


def quote(value: Any) -> str:
    """Return a value as an error message shows it, cut to 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
