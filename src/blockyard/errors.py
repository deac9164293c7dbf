"""Errors for the user: one clear message, exit code 2, no traceback."""

from __future__ import annotations

import difflib
import logging
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence

SHORTEST_PART = 3  # letters of a name that are enough to look for it inside others
LONGEST = 80  # characters of a value that a message shows
SHOWN = 5  # alternatives that a message lists before it is folded


class UserError(ValueError):
    """Invalid input. The message names what is wrong, the value, and what is allowed.

    torch raises the error of a loader's worker process again, with that process's traceback around the message; it is
    left out.
    """

    def __init__(self, message: str = "") -> None:
        if re.match(r"Caught \w+ in .*\nOriginal Traceback", message):
            lines = [line for line in message.splitlines() if re.match(r"[\w.]*Error: ", line)]
            message = lines[-1].partition(": ")[2] if lines else message
        super().__init__(message)


def printable(text: str) -> str:
    """`text` with what a terminal could act on, or not encode, as escapes: control characters, lone surrogates."""
    if text.isprintable():
        return text
    kept = ("\n", "\t")
    return "".join(
        c if c.isprintable() or c in kept or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in text
    )


def printable_record(record: logging.LogRecord) -> bool:
    """Write the message of a log record with `printable`: parts of it may come from the files of a stranger's run.

    A filter of the logger "blockyard", so that it holds for the terminal, for log.txt and for a caller's own handlers.
    """
    record.msg = printable(record.getMessage())
    record.args = None
    return True


def refuse(problems: Sequence[str]) -> int:
    """Write every problem to standard error and return exit code 2."""
    head = "blockyard: " if len(problems) == 1 else f"blockyard: {len(problems)} problems\n  - "
    sys.stderr.write(printable(head + "\n  - ".join(problems)) + "\n")
    return 2


def quoted(value: object) -> str:
    """The `repr` of a value, cut where it is long."""
    try:
        return shortened(repr(value))
    except (RecursionError, ValueError):  # nested too deep; a number of more digits than Python prints
        return f"a {type(value).__name__} that is too large to show"


def shortened(text: str) -> str:
    """A text, cut where it is long."""
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]}... ({len(text):,} characters)"


def first_line(error: BaseException) -> str:
    """The first line of an error's text, cut where it is long; libraries add stack frames below it."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    if len(text) <= 4 * LONGEST:
        return text
    return f"{text[: 4 * LONGEST]}..."


def unreadable(error: OSError) -> str:
    """Say which file or folder of the user could not be read, and why."""
    reason = error.strerror or first_line(error)
    if error.filename:
        return f"{error.filename} cannot be read: {reason}"
    return f"it cannot be read: {reason}"


def near(name: str, names: Iterable[str]) -> list[str]:
    """The three nearest names, best first: those spelt alike, then those that begin with `name` or contain it."""
    names = list(names)
    alike = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    containing = [each for each in names if len(name) >= SHORTEST_PART and name in each and each not in alike]
    return (alike + sorted(containing, key=lambda each: not each.startswith(name)))[:3]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """`; did you mean NAME?` with the nearest name, or nothing where none is near."""
    return "".join(f"; did you mean {each}?" for each in near(name, names)[:1])


def fold(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN + 1 else ""
    return ", ".join(names[:SHOWN] if more else names) + more
