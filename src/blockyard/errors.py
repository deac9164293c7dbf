"""Errors for the user: one clear message, exit code 2, no traceback."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence

SHORTEST_PART = 3  # letters of a name that are enough to look for it inside others
SHOWN = 5  # alternatives that a message lists before it is folded


class UserError(ValueError):
    """Invalid input. The message names what is wrong, the value, and what is allowed."""


def refuse(problems: Sequence[str]) -> int:
    """Write every problem to standard error and return exit code 2."""
    head = "blockyard: " if len(problems) == 1 else f"blockyard: {len(problems)} problems\n  - "
    sys.stderr.write(head + "\n  - ".join(problems) + "\n")
    return 2


def near(name: str, names: Iterable[str]) -> list[str]:
    """The three nearest names, best first: those spelt alike, then those that begin with `name` or contain it."""
    names = list(names)
    alike = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    containing = [each for each in names if len(name) >= SHORTEST_PART and name in each and each not in alike]
    return (alike + sorted(containing, key=lambda each: not each.startswith(name)))[:3]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean NAME?` with the nearest name, or nothing where none is near."""
    return "".join(f"; did you mean {each}?" for each in near(name, names)[:1])


def fold(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN + 1 else ""
    return ", ".join(names[:SHOWN] if more else names) + more
