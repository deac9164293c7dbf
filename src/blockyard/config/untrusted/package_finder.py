"""Finds packages of the user's own in the working folder and in the project file's folder, and nothing else there.

Neither folder is on Python's path: a file in a folder of somebody else may be called `hydra_plugins`, hold entry
points for libraries, or be a module that a library looks for and does not find. A package is found there where `allow`
names it, after everything that is installed.

BLOCKYARD_PACKAGES hands the packages and the folders to the Python processes that this one starts. PYTHONSAFEPATH keeps
the working folder off their path.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "BLOCKYARD_PACKAGES"
_SAFE_PATH = "PYTHONSAFEPATH"


class PackageFinder:
    """Finds the top-level modules `packages` in `folders`. Submodules are found by the path of their package."""

    def __init__(self, packages: Iterable[str], folders: Iterable[str]) -> None:
        self.packages = frozenset(packages)
        self.folders = tuple(dict.fromkeys(folders))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an allowed package, or None."""
        if path is not None or name not in self.packages:
            return None
        return PathFinder.find_spec(name, self.folders, target)

    def as_text(self) -> str:
        """Return the value of BLOCKYARD_PACKAGES."""
        return json.dumps({"packages": sorted(self.packages), "folders": self.folders})


def install(text: str) -> None:
    """Add the finder that a value of BLOCKYARD_PACKAGES describes, for as long as this process lives."""
    os.environ[VARIABLE] = text
    if text and all(finder.as_text() != text for finder in _finders()):
        settings = json.loads(text)
        sys.meta_path.append(PackageFinder(settings["packages"], settings["folders"]))


@contextmanager
def importable(packages: Iterable[str], folders: Iterable[str | Path] = ()) -> Iterator[None]:
    """Let `packages` be imported, inside the block, from the working folder and from `folders`; nothing else can.

    The working folder leaves Python's path, where a notebook or `python -c` has it as "".
    """
    before = {name: os.environ.get(name) for name in (VARIABLE, _SAFE_PATH)}
    inherited = _finders()
    finder = PackageFinder(
        {*packages, *(name for each in inherited for name in each.packages)},
        [*map(str, (os.getcwd(), *folders)), *(folder for each in inherited for folder in each.folders)],
    )
    os.environ |= {VARIABLE: finder.as_text(), _SAFE_PATH: "1"}
    sys.meta_path.append(finder)
    had_working_folder = "" in sys.path
    sys.path[:] = [entry for entry in sys.path if entry]
    try:
        yield
    finally:
        if had_working_folder:
            sys.path.insert(0, "")
        sys.meta_path.remove(finder)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def sealed(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that runs inside `importable`, with the packages of its argument `allow` if it has one."""

    @functools.wraps(function)
    def call(*arguments: P.args, **settings: P.kwargs) -> T:
        allow: Any = settings.get("allow") or ()
        with importable(allow):
            return function(*arguments, **settings)

    return call


def described() -> str:
    """Return the value of BLOCKYARD_PACKAGES, or "", for a process that does not inherit the environment."""
    return os.environ.get(VARIABLE, "")


def spec_unasked(name: str) -> ModuleSpec | None:
    """Return the spec of a top-level module, allowed or not: to read its text, not to import it."""
    for finder in _finders():
        spec = PathFinder.find_spec(name, finder.folders)
        if spec:
            return spec
    return None


def is_not_allowed(module: str) -> bool:
    """Return whether a module in the user's folders cannot be imported because `allow` does not name it."""
    name = module.partition(".")[0]
    return all(name not in finder.packages for finder in _finders()) and spec_unasked(name) is not None


def _finders() -> list[PackageFinder]:
    return [finder for finder in sys.meta_path if isinstance(finder, PackageFinder)]
