"""`key=value` text, read with Hydra's grammar. Hydra's parser is called here and nowhere else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from blockyard.errors import first_line

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


LONGEST = 20_000  # characters of an override
DEEPEST = 20  # levels of lists and mappings in a value
# Options that take lists of overrides. Hydra's grammar takes an override inside a value in quotes only.
_LISTS_OF_OVERRIDES = re.compile(r"(\+*layers\.kinds\.[\w-]+=)(.*)", re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")  # a text that needs no quotes, unless it is one of these
_KEYWORDS = {"null", "true", "false", "inf", "nan"}
_DEPTHS = {"[": 1, "{": 1, "(": 1, "]": -1, "}": -1, ")": -1}


@lru_cache(maxsize=4096)
def parse_override(text: str) -> Override:
    """Return the override in a text; callers must not change it. Raises ValueError with one line."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if len(text) > LONGEST:
        raise ValueError(f"{len(text):,} characters; no value is longer than {LONGEST:,}")
    depths = accumulate(_DEPTHS.get(letter, 0) for letter in text)  # of brackets, in quoted text too
    if max(depths, default=0) > DEEPEST:
        raise ValueError(f"lists or mappings nested deeper than {DEEPEST}")
    try:
        return OverridesParser.create().parse_override(_quoted_overrides(text))
    except HydraException as error:
        raise ValueError(first_line(error)) from error
    except ValueError as error:  # a number of more digits than Python reads
        raise ValueError("a number of too many digits") from error


def _quoted_overrides(text: str) -> str:
    """Put the items of `layers.kinds.far=[position=none,norm=rms]` into quotes; any other text stays as it is."""
    match = _LISTS_OF_OVERRIDES.fullmatch(text)
    if not match or any(quote in text for quote in "'\""):
        return text
    key, value = match.groups()
    return key + ",".join(_quoted_items(alternative) for alternative in _apart(value))  # several in a multirun


def _quoted_items(text: str) -> str:
    """Return a list with its items that have a `=` in quotes; any other value as it is."""
    if not (text.startswith("[") and text.endswith("]")):
        return text
    items = []
    for item in _apart(text[1:-1]):
        item = item.strip()
        items.append(repr(item) if "=" in item else item)
    return f"[{','.join(items)}]"


def _apart(text: str) -> list[str]:
    """Return the parts of a text between the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += _DEPTHS.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parse_value(text: str) -> Any:
    """Return the value of `text` behind a `=`: a number, text, true, null, a list or a mapping. Raises ValueError."""
    override = parse_override(f"value={text}")
    if override.is_sweep_override():
        raise ValueError(f"{text!r} is several values; write [{text}] for a list")
    return override.value()


def to_override(key: str, value: Any) -> str:
    """Return the override that sets a key to a YAML value."""
    return f"{key}={to_text(value)}"


def to_text(value: Any) -> str:
    """Return a YAML value in Hydra's override grammar."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(to_text(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{to_text(item)}" for key, item in value.items()) + "}"
    if _PLAIN.fullmatch(value) and value.lower() not in _KEYWORDS:
        return value
    # In Hydra's quotes a backslash stands for itself, except before a quote and at the end.
    return "'" + re.sub(r"(?<!\\)(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value) + "'"


def as_quoted(text: str) -> str:
    """Return a value, or each item of a list, in quotes, so that a number or a word such as true is read as text."""
    if not (text.startswith("[") and text.endswith("]")):
        is_quoted = text[:1] in ("'", '"')
        return text if is_quoted else f'"{text}"'
    items = [as_quoted(item.strip()) for item in _apart(text[1:-1])]
    return f"[{','.join(items)}]"


def parse_allow(text: str | None) -> list[str]:
    """Return the packages that `allow=[first,second]` names; none if the text is empty."""
    names = [part.strip(" '\"") for part in (text or "").strip("[]").split(",")]
    return [name for name in names if name]


def packages_typed(texts: Iterable[str]) -> list[str]:
    """Return the packages that `allow=[...]` among typed texts names, before any of them is checked."""
    return [name for text in texts if text.startswith("allow=") for name in parse_allow(text.partition("=")[2])]
