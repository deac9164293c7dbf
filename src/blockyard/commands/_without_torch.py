"""Answers a command in a process of its own that never imports PyTorch, which takes most of the time of a short answer.

The process has stand-ins in the place of PyTorch (`config.untrusted.placeholders`), and hands back its exit code and
what it would print. Where the answer needs PyTorch after all, as that to a sound config does, the process ends without
one, and the command is run here. It begins with the results that the process hands over, so that a config is composed
once.

    this process     fork, wait                      import torch, run the command
    the other one          compose, rules, refusals
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Hashable
from typing import Any, NoReturn, TypeVar

from blockyard.config.untrusted import installed, placeholders

Result = TypeVar("Result")

ANSWERS = ("explain", "schema")  # commands that need no PyTorch
# Commands that may end before they need PyTorch: by an answer, or by a refusal.
COMMANDS = (*ANSWERS, "check", "train", "sweep")
# Libraries that the others import in any case: with them imported here, a second start is shorter.
SHARED = (
    *("pydantic", "omegaconf", "numpy"),
    *("hydra.core.override_parser.overrides_parser", "hydra._internal.config_loader_impl"),
)
_results: dict[Hashable, Any] = {}  # of `once`, on their way to the process with PyTorch


def answer(command: str, run: Callable[[], int]) -> int | None:
    """Run a command with stand-ins for PyTorch, print what it prints, and return its exit code.

    None where it needs PyTorch, or where PyTorch is imported already. It has then printed nothing.
    """
    if any(library in sys.modules for library in placeholders.LIBRARIES):
        return None
    if command not in ANSWERS:
        for name in SHARED:
            importlib.import_module(name)
        installed.installed()
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
    code, printed, results = pickle.loads(content)
    if code is None:
        _import_torch()
        _results.update(pickle.loads(results))
        return None
    for name, text in printed:
        getattr(sys, name).write(text)
    return int(code)


def once(key: Hashable, compute: Callable[[], Result]) -> Result:
    """Return a result that needs no PyTorch: the one that the process without it has handed over, or a new one.

    A result is handed over once, and can be pickled.
    """
    if key in _results:
        return _results.pop(key)
    result = compute()
    if placeholders.installed():
        _results[key] = result
    return result


def _answer_and_exit(run: Callable[[], int], writer: int) -> NoReturn:
    """Run the command in the new process, and write its exit code and output to the pipe, or the results it ends with.

    Results are bytes of their own: their classes are imported with PyTorch.
    """
    # No error is told here: the command is run again, and meets it where all libraries are there.
    with contextlib.suppress(BaseException), open(writer, "wb") as pipe:
        placeholders.install()
        printed: list[tuple[str, str]] = []
        sys.stdout = _Held("stdout", sys.stdout, printed)
        sys.stderr = _Held("stderr", sys.stderr, printed)
        code: int | None = None
        results = b""
        try:
            code = run()
        except placeholders.NeedsTorchError:
            results = pickle.dumps(_results)
        pickle.dump((code, printed, results), pipe)
    os._exit(0)


def _import_torch() -> None:
    """Import PyTorch without searching its many new objects for garbage, now or later."""
    gc.disable()
    try:
        importlib.import_module("torch")
    finally:
        gc.freeze()
        gc.enable()


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
