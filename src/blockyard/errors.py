"""Errors for the user: one clear message, exit code 2, no traceback."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Sequence

PART = 3  # letters of a name that are enough to look for it inside others


class UserError(ValueError):
    """Something the user gave cannot work; the message says what, which value, and what would."""


def refuse(problems: Sequence[str]) -> int:
    """Say every problem on standard error and answer exit code 2."""
    head = "blockyard: " if len(problems) == 1 else f"blockyard: {len(problems)} problems\n  - "
    sys.stderr.write(head + "\n  - ".join(problems) + "\n")
    return 2


def near(word: str, words: Iterable[str]) -> list[str]:
    """The nearest legal words, best first: those spelt alike, then those that begin with the word or hold it."""
    words = list(words)
    alike = difflib.get_close_matches(word, words, n=3, cutoff=0.5)
    holding = [each for each in words if len(word) >= PART and word in each and each not in alike]
    return (alike + sorted(holding, key=lambda each: not each.startswith(word)))[:3]
