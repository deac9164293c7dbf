"""Commands and calls that must be refused: one message, nothing run, nothing written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from blockyard.cli import main
from tests.battery.hostile_folders import CANARY

LONGEST = 20_000  # characters of a message
RUNS = {
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn", "subprocess.Popen",
    "socket.connect", "urllib.Request", "webbrowser.open", "pickle.find_class",
}  # fmt: skip
# Composed choices are kept pickled in memory, see `compose_choices`. These packages may be in them; no file's may.
UNPICKLED = ("hydra", "omegaconf", "collections", "typing", "enum", "pathlib", "copyreg", "blockyard")
PLAIN = {"bool", "dict", "float", "frozenset", "int", "list", "object", "set", "str", "tuple"}  # of builtins
CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.link", "os.truncate", "shutil.rmtree"}
_events: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _events is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        text = os.fsdecode(path) if isinstance(path, str | bytes) else ""
        if writes and text and not _is_bytecode(text) and not text.startswith("/dev/"):
            _events.append(f"open {text} {mode}")
    elif event in ("os.rename", "os.mkdir") and _is_bytecode(str(arguments[0])):
        return
    elif event == "pickle.find_class":
        module, name = map(str, arguments)
        if module.partition(".")[0] not in UNPICKLED and not (module == "builtins" and name in PLAIN):
            _events.append(f"{event} {arguments!r}"[:200])
    elif event in RUNS or event in CHANGES:
        _events.append(f"{event} {arguments!r}"[:200])


def _is_bytecode(path: str) -> bool:
    """Return whether a path is where Python keeps what it has compiled, see `support.isolation`."""
    return "__pycache__" in path or (sys.pycache_prefix is not None and path.startswith(sys.pycache_prefix))


sys.addaudithook(_audit)


@contextmanager
def nothing_happens(root: Path) -> Iterator[None]:
    """Assert that the block starts no program, opens no connection and changes no file; below `root` none appears."""
    global _events
    before = _files(root)
    _events = events = []
    try:
        yield
    finally:
        _events = None
    assert events == [], events
    assert _files(root) == before
    assert not [path for path in root.rglob("*") if path.name == CANARY]


def refused(root: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command in the working folder `root`, which must end with exit code 2 and do nothing."""
    os.chdir(root)
    with nothing_happens(root):
        code = main(arguments)
    out, err = capsys.readouterr()
    assert code == 2, (code, out, err)
    assert err.startswith("blockyard: "), err
    assert "Traceback" not in err
    assert sum(line.startswith("blockyard: ") for line in err.splitlines()) == 1, err
    assert len(err) <= LONGEST
    assert not any(ord(character) < 32 and character not in "\n\t" for character in err), repr(err)
    assert out == ""
    return err


def _files(root: Path) -> dict[str, tuple[int, ...]]:
    """Every path below a folder with its kind, size and time of change; links are not followed."""
    result = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            if name == "__pycache__" or os.path.basename(folder) == "__pycache__":
                continue
            path = os.path.join(folder, name)
            status = os.lstat(path)
            is_folder = os.path.isdir(path)
            result[path] = (status.st_mode, *(() if is_folder else (status.st_size, status.st_mtime_ns)))
    return result
