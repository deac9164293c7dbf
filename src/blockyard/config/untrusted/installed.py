"""Components of installed packages: the entry points of the group `blockyard.components`.

    [project.entry-points."blockyard.components"]
    mymixers = "mymixers.conf"     # the folder of choices inside the package, with a folder for each family

The folder is read like one of `--config-dir`, after those, and classes of the package may be built without `allow`:
installing a package is what trusts it. No package is imported before a config names a class of it.
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
    """What one entry point brings.

    name: of the distribution; package: whose classes a config may name; folder: of its choices, None with a problem
    problem: why the entry point cannot be used; ""
    """

    name: str
    package: str
    folder: Path | None
    problem: str = ""


def installed() -> tuple[Installed, ...]:
    """What every installed package brings, by name; nothing with BLOCKYARD_COMPONENTS=none."""
    return () if os.environ.get(VARIABLE) == "none" else _discover()


def installed_packages() -> tuple[str, ...]:
    """The packages whose classes a config may name because they are installed as components."""
    return tuple(each.package for each in installed() if each.folder is not None)


@cache
def _discover() -> tuple[Installed, ...]:
    return tuple(sorted({_read(point) for point in entry_points(group=GROUP)}, key=lambda each: each.name))


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
    folders = [Path(root).joinpath(*inside) for root in (spec.submodule_search_locations if spec else None) or ()]
    folder = next((each.resolve() for each in folders if each.is_dir()), None)
    return Installed(
        name, package, folder, "" if folder else f"{point.name} = {point.value!r}: the folder does not exist"
    )
