"""Answers a command in a process of its own that never imports PyTorch, which takes most of the time of a short answer.

The process has stand-ins in the place of PyTorch (`config.untrusted.placeholders`), and hands back its exit code and
what it would print. Where the answer needs PyTorch after all, as that to a sound config does, the process ends without
one, and the command is run here.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from blockyard.config.untrusted import placeholders

ANSWERS = ("explain", "schema")  # commands that need no PyTorch
# Commands that may end before they need PyTorch: by an answer, or by a refusal.
COMMANDS = (*ANSWERS, "check", "train", "sweep")
# Libraries that the others import in any case: with them imported here, a second start is shorter.
SHARED = ("pydantic", "omegaconf", "hydra.core.override_parser.overrides_parser", "hydra._internal.config_loader_impl")


def answer(command: str, run: Callable[[], int]) -> int | None:
    """Run a command with stand-ins for PyTorch, print what it prints, and return its exit code.

    None where it needs PyTorch, or where PyTorch is imported already. It has then printed nothing.
    """
    if any(library in sys.modules for library in placeholders.LIBRARIES):
        return None
    if command not in ANSWERS:
        for name in SHARED:
            importlib.import_module(name)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer_and_exit(run, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    if not content:
        return None
    code, printed = json.loads(content)
    for name, text in printed:
        getattr(sys, name).write(text)
    return int(code)


def _answer_and_exit(run: Callable[[], int], writer: int) -> NoReturn:
    """Run the command in the new process, and write its exit code and output to the pipe if it has come to an end."""
    # No error is told here: the command is run again, and meets it where all libraries are there.
    with contextlib.suppress(BaseException), open(writer, "wb") as pipe:
        placeholders.install()
        printed: list[tuple[str, str]] = []
        sys.stdout = _Held("stdout", sys.stdout, printed)
        sys.stderr = _Held("stderr", sys.stderr, printed)
        code = run()
        pipe.write(json.dumps([code, printed]).encode())
    os._exit(0)


class _Held:
    """A stream that keeps what is written, and is like the given one in all else: a terminal, its encoding."""

    def __init__(self, name: str, stream: Any, printed: list[tuple[str, str]]) -> None:
        self._name = name
        self._stream = stream
        self._printed = printed

    def write(self, text: str) -> int:
        """Keep a text."""
        self._printed.append((self._name, text))
        return len(text)

    def flush(self) -> None:
        """Nothing has been written."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
