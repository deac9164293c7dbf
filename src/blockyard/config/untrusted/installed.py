"""Components of installed packages: the entry points of the group `blockyard.components`.

    [project.entry-points."blockyard.components"]
    mymixers = "mymixers.conf"     # the folder of choices inside the package, with a folder for each family

The folder is read like a folder of `--config-dir`, after those folders, and classes of the package may be built without
`allow`: installing a package trusts it. No package is imported before a config names a class of it.
BLOCKYARD_COMPONENTS=none leaves them all out.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "blockyard.components"
VARIABLE = "BLOCKYARD_COMPONENTS"


@dataclass(frozen=True)
class Installed:
    """The package of one entry point.

    name: of the distribution
    package: a config may name classes of it
    folder: of its choices; None with a problem
    problem: why the entry point cannot be used; ""
    """

    name: str
    package: str
    folder: Path | None
    problem: str = ""


def installed() -> tuple[Installed, ...]:
    """Return the packages of all entry points, by name; none with BLOCKYARD_COMPONENTS=none."""
    return () if os.environ.get(VARIABLE) == "none" else _discover()


def installed_packages() -> tuple[str, ...]:
    """Return the names of packages that are installed as components: a config may name their classes."""
    return tuple(package.package for package in installed() if package.folder is not None)


@cache
def _discover() -> tuple[Installed, ...]:
    packages = {_read(point) for point in entry_points(group=GROUP)}
    return tuple(sorted(packages, key=lambda package: package.name))


def _read(point: EntryPoint) -> Installed:
    name = point.dist.name if point.dist is not None else point.name
    package = point.value.partition(".")[0]
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", point.value):
        return Installed(name, package, None, f"{point.name} = {point.value!r}: expected PACKAGE.FOLDER of choices")
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    inside = point.value.split(".")[1:]
    for root in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(root).joinpath(*inside)
        if folder.is_dir():
            return Installed(name, package, folder.resolve())
    return Installed(name, package, None, f"{point.name} = {point.value!r}: the folder does not exist")
