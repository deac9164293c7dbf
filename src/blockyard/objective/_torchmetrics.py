"""The import of torchmetrics, without its optional packages. Lightning imports torchmetrics too.

torchmetrics imports every optional package that is installed (transformers, torchvision, scipy, matplotlib) for
metrics of text, images and audio. That takes longer than all else at the start of a run. While `import_torchmetrics`
imports it, these packages count as absent; afterwards they can be imported as ever. Metrics of torchmetrics that need
one of them report in this process that it is missing, so a run that allows packages of the user's own imports
everything.

This module stands alone because it must be imported before torchmetrics is; `_named_metrics` imports torchmetrics.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from types import ModuleType

OPTIONAL = frozenset({"transformers", "torchvision", "scipy", "matplotlib", "scienceplots", "regex", "nltk"})


class _Absent:
    """Finds none of `names`. First on sys.meta_path, it ends the search for them."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for the packages named, and leave others to the next finder."""
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@contextmanager
def optional_packages_absent() -> Iterator[None]:
    """Let the packages of `OPTIONAL` that are not imported yet count as not installed inside the context."""
    from lightning_utilities.core import imports

    names = frozenset(name for name in OPTIONAL if name not in sys.modules)
    finder = _Absent(names)
    version = imports._version  # its checks of versions do not go through sys.meta_path

    def version_of(distribution_name: str) -> str:
        if distribution_name in names:
            raise PackageNotFoundError(distribution_name)
        return version(distribution_name)

    sys.meta_path.insert(0, finder)
    imports._version = version_of
    try:
        yield
    finally:
        imports._version = version
        sys.meta_path.remove(finder)


def import_torchmetrics(allow: Sequence[str] = ()) -> None:
    """Import torchmetrics without optional packages, or whole if packages of the user's own are allowed."""
    if "torchmetrics" in sys.modules:
        return
    with nullcontext() if allow else optional_packages_absent():
        importlib.import_module("torchmetrics")
