"""Counts the file operations of a process below a folder, and kills it before or after one of them.

Every function of Python that changes a folder or a file's content is wrapped, and torch's own writer. Whatever a run
comes to call is counted by itself; `missed` compares the count with Python's audit events, which see each call.
"""

from __future__ import annotations

import _io
import builtins
import io
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_BY_PATH = ("replace", "rename", "link", "symlink", "unlink", "remove", "rmdir", "mkdir", "truncate")
_BY_HANDLE = ("ftruncate", "fsync", "fdatasync", "pwrite")
_AUDITED = {  # the audit event of each function that has one
    "replace": "os.rename",
    "rename": "os.rename",
    "link": "os.link",
    "symlink": "os.symlink",
    "unlink": "os.remove",
    "remove": "os.remove",
    "rmdir": "os.rmdir",
    "mkdir": "os.mkdir",
    "truncate": "os.truncate",
    "ftruncate": "os.truncate",
    "open": "open",
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Kill(NamedTuple):
    """Where a process is killed: before or after the operation of a number, counted from 0."""

    number: int
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'}-{self.number}"


class FileOperations:
    """Installed in a process that ends soon: nothing is put back.

    done: "name path" of every operation below `root` so far
    """

    def __init__(self, root: Path, kill: Kill | None = None) -> None:
        self.root, self.kill = str(root), kill
        self.done: list[str] = []
        self.audited: Counter[str] = Counter()

    def install(self) -> FileOperations:
        """Wrap the functions. Returns this object."""
        import torch

        for name in _BY_PATH:
            setattr(
                os, name, self._counted(getattr(os, name), name, _second if name in ("link", "symlink") else _first)
            )
        for name in _BY_HANDLE:
            setattr(os, name, self._counted(getattr(os, name), name, _first))
        os.open = self._counted(os.open, "open", _opened_by_flags)
        builtins.open = io.open = _io.open = self._counted(io.open, "open", _opened_by_mode)  # type: ignore[assignment]
        torch.save = self._counted(torch.save, "torch.save", _second)
        if self.kill is None:
            sys.addaudithook(self._audit)
        return self

    def missed(self) -> dict[str, int]:
        """Audit events that no wrapped function accounts for."""
        counted = Counter(_AUDITED.get(entry.split(" ")[0], "") for entry in self.done)
        return {event: number for event, number in self.audited.items() if number > counted[event]}

    def _counted(self, function: Callable[..., Any], name: str, path_of: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **settings: Any) -> Any:
            path = self._below(path_of(*arguments, **settings))
            if path is None:
                return function(*arguments, **settings)
            number = len(self.done)
            self.done.append(f"{name} {path}")
            if self.kill == (number, False):
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*arguments, **settings)
            finally:
                if self.kill == (number, True):
                    os.kill(os.getpid(), signal.SIGKILL)

        return counted

    def _below(self, path: Any) -> str | None:
        """The path of a file below the root, relative to it; None for any other."""
        try:
            text = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.abspath(os.fspath(path))
        except (OSError, TypeError, ValueError):
            return None
        text = os.fsdecode(text)
        return text[len(self.root) + 1 :] or "." if text.startswith(self.root) else None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _AUDITED.values():
            return
        path = arguments[1] if event in ("os.link", "os.symlink") else arguments[0]
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
            return
        if self._below(path) is not None:
            self.audited[event] += 1


def _first(path: Any, *_: Any, **__: Any) -> Any:
    return path


def _second(_: Any, path: Any, *__: Any, **___: Any) -> Any:
    return path


def _opened_by_flags(path: Any, flags: int, *_: Any, **__: Any) -> Any:
    return path if flags & _WRITING else None


def _opened_by_mode(file: Any, mode: str = "r", *_: Any, **__: Any) -> Any:
    return file if set(mode) & set("wax+") and not isinstance(file, int) else None
