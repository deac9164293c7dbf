"""The reason of an error in one line that can be printed anywhere."""

from __future__ import annotations

from blockyard.errors import printable
from blockyard.runs.redact import redact_text

_LENGTH = 400


def reason_of(error: BaseException) -> str:
    """The type of an error and the first line of its text, without secrets, with control characters escaped.

    Of an error in a worker process of a loader it is the last line, which says what happened there. The text of an
    error may be anything: an error whose `__str__` raises is named by its type.
    """
    try:
        text = str(error)
    except BaseException as problem:  # whatever a component raises where its error is described
        text = f"its text cannot be printed ({type(problem).__name__})"
    lines = text.strip().splitlines()
    line = next((line for line in (lines[::-1] if "Original Traceback" in text else lines) if line.strip()), "")
    line = printable(redact_text(line.strip()))[:_LENGTH] or "no message"
    name = printable(type(error).__name__)
    return line if line.startswith(f"{name}: ") else f"{name}: {line}"
