"""Names of classes as data has them: spellings of one number are one name, and names that look wrong are reported.

Labels 1 and 1.0, as pandas writes a column without and with a gap, are one class where all labels are whole numbers; 01
and 1 are texts, and differ. Two kinds of names are reported: names that look alike, such as `spam`, `spam ` and `Spam`,
or é of one character and of two; and names that many tools write for a missing value, such as NaN.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping

from blockyard.errors import fold, quoted

log = logging.getLogger("blockyard")

# Texts that many tools write for a missing value.
LIKE_MISSING = frozenset({"nan", "na", "n/a", "#n/a", "<na>", "null", "none"})
_WHOLE = re.compile(r"(0|-?[1-9][0-9]*)(\.0*)?")


def plain_number(name: str) -> str:
    """Return a whole number without a point; any other text as it is, such as 01."""
    match = _WHOLE.fullmatch(name)
    return name if match is None else match[1]


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name of each label: `plain_number` of it where all are whole numbers, else itself."""
    names = set(names)
    if all(_WHOLE.fullmatch(name) for name in names):
        return {name: plain_number(name) for name in names}
    return {name: name for name in names}


def warn_of_names(where: object, counts: Mapping[str, int]) -> None:
    """Log one warning of the classes that look alike or read like a missing label. counts: samples of each class."""
    looks: dict[str, list[str]] = defaultdict(list)
    for name in counts:
        looks[unicodedata.normalize("NFC", name).strip().casefold()].append(name)
    alike = [_with_counts(names, counts) for names in looks.values() if len(names) > 1]
    missing = [name for name in counts if name.strip().lower() in LIKE_MISSING]
    problems = []
    if alike:
        problems.append(f"has classes that look alike: {fold(alike)}; write them alike if they are one class")
    if missing:
        problems.append(f"has the class {fold(missing)}: leave a cell empty where no label is known")
    if problems:
        log.warning("%s %s", where, "; and it ".join(problems))


def _with_counts(names: list[str], counts: Mapping[str, int]) -> str:
    """Return classes that look alike with their samples: 'spam' (30) and 'spam ' (12)."""
    normal = {unicodedata.normalize("NFC", name) for name in names}
    escaped = len(normal) < len(names)  # nobody sees the difference between é of one and of two characters
    shown = [ascii(name) if escaped else quoted(name) for name in names]
    return " and ".join(f"{text} ({counts[name]:,})" for text, name in zip(shown, names, strict=True))
