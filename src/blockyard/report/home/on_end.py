"""Run a command of the user's at the end of a sweep, with the answer as JSON on its standard input.

    {"sweep": "quickstart", "exit_code": 0, "state": "done", "folder": "/.../sweeps/quickstart",
     "answer": "...", "verdict": "supported", "metric": "test/accuracy",
     "arms": [{"name": "stem", "n": 8, "mean": 0.99, "interval": [0.985, 0.995], "verdict": "better"}, ...],
     "page": "/.../report.html", "comparison": "/.../comparison.json"}

What a sweep has not written by its end is null, and `arms` is empty then.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.errors import UserError
from blockyard.report.home.stale import DATA, PAGE
from blockyard.report.load.document import ComparisonDocument, read_document

SECONDS = 60.0  # after which the command is ended
_INTERRUPTED = (130, 143)


def arguments_of(command: str) -> list[str]:
    """Return the arguments of a command. Raises UserError for one that cannot be run."""
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise UserError(f"--on-end {command!r}: {error}; close the quotation mark") from error
    if not arguments or shutil.which(arguments[0]) is None:
        program = arguments[0] if arguments else ""
        raise UserError(
            f"--on-end: the program {program!r} is not installed; no shell runs the command, so for pipes "
            "and variables name a script, or sh -c '...'"
        )
    return arguments


def run_on_end(arguments: Sequence[str], folder: Path, exit_code: int, say: Callable[[str], None]) -> None:
    """Run the command with the answer of the sweep in `folder`; its failure is reported and raises nothing."""
    content = json.dumps(answer_of(folder, exit_code), allow_nan=False)
    try:
        ended = subprocess.run(arguments, input=content, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        say(f"--on-end {arguments[0]} did not end within {SECONDS:g} s and was stopped; the sweep is as it was")
    except OSError as error:
        say(f"--on-end {arguments[0]} could not run: {error.strerror or error}; the sweep is as it was")
    else:
        if ended.returncode:
            say(f"--on-end {arguments[0]} ended with exit code {ended.returncode}; the sweep is as it was")


def answer_of(folder: Path, exit_code: int) -> dict[str, Any]:
    """Return the state of a sweep as plain data, with its answer where one is up to date."""
    state = "done"
    if exit_code:
        state = "interrupted" if exit_code in _INTERRUPTED else "failed"
    content: dict[str, Any] = {
        "sweep": folder.name,
        "exit_code": exit_code,
        "state": state,
        "folder": str(folder.absolute()),
        "answer": None,
        "verdict": None,
        "metric": None,
        "arms": [],
        "page": None,
        "comparison": None,
    }
    document = _current(folder)
    if document is None:
        return content
    arms = []
    for arm in document.arms:
        arms.append(
            {"name": arm.name, "n": arm.n, "mean": arm.mean, "interval": arm.interval, "verdict": arm.verdict},
        )
    return content | {
        "answer": document.answer,
        "verdict": None if document.expect is None else document.expect.verdict,
        "metric": document.metric,
        "arms": arms,
        "page": str((folder / PAGE).absolute()),
        "comparison": str((folder / DATA).absolute()),
    }


def _current(folder: Path) -> ComparisonDocument | None:
    """Return the comparison of a sweep's folder; None where it is missing, or older than the last start."""
    try:
        document = read_document(read_json(folder / DATA))
    except (OSError, ValueError):
        return None
    if document.stale:
        return None
    return document
