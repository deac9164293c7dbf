"""Override words of a sweep file: which may stand there, and how a YAML value becomes one."""

from __future__ import annotations

import json
import math
import re
from typing import Any

# Keys with a place of their own, and where that is.
ELSEWHERE = {
    "seed": "the sweep's `seeds:` say it",
    "outputs": "it is given on the command line, outputs=DIR",
    "allow": "packages are allowed on the command line only, 'allow=[mypackage]'",
    "force": "a sweep runs what is missing; --retry starts failed cells again",
    "resume": "a sweep goes on by itself with what was interrupted",
    "run": "it names a finished run, for eval and generate",
    "executor": "it is given on the command line, --executor NAME",
    "hydra": "keys of Hydra itself are no part of an experiment",
}
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_KEYWORDS = {"null", "true", "false", "inf", "nan"}
_LABEL = re.compile(r"[^A-Za-z0-9_.-]+")


def key_of(word: str) -> str:
    """The key that an override sets."""
    return word.partition("=")[0].lstrip("+~")


def problem(word: Any, where: str) -> str | None:
    """Why a word cannot stand in a sweep file, or None. Whether anybody reads its key is judged later."""
    if not isinstance(word, str):
        return f'{where}: {shown(word)} is no override; write "key=value", such as model.dim=64'
    if "\n" in word or "\0" in word:
        return f"{where}: {word!r} spans lines; an override is one line"
    if "=" not in word:
        return f"{where}: {word!r} has no value; write {word.strip() or 'key'}=VALUE"
    key = key_of(word)
    return key_problem(key, where) if key.strip() == key and key else f"{where}: {word!r} has no key; write key=value"


def key_problem(key: str, where: str) -> str | None:
    """Why a key has no place among a sweep's overrides, or None."""
    first = key.replace("/", ".").partition(".")[0]
    reason = ELSEWHERE.get(first)
    return f"{where}: {key} has no place here; {reason}" if reason else None


def word(key: str, value: Any) -> str:
    """The override that sets a key to a YAML value."""
    return f"{key}={text(value)}"


def text(value: Any) -> str:
    """A YAML value as Hydra's grammar writes it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(text(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{text(item)}" for key, item in value.items()) + "}"
    if _PLAIN.fullmatch(value) and value.lower() not in _KEYWORDS:
        return value
    # In Hydra's quotes a backslash stands for itself, except before a quote and at the end.
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), value) + "'"


def label(value: Any) -> str:
    """A value as part of an arm's name: short, and fit for a file name."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # with its sign
    if isinstance(value, dict):
        return "-".join(f"{label(str(key))}{label(item)}" for key, item in value.items()) or "empty"
    if isinstance(value, list):
        return "-".join(map(label, value)) or "empty"
    return _LABEL.sub("-", value if isinstance(value, str) else text(value)).strip("-.") or "empty"


def shown(value: Any) -> str:
    """A value as an error message quotes it."""
    said = json.dumps(value, ensure_ascii=False, default=str)
    return said if len(said) <= 80 else f"{said[:77]}..."
