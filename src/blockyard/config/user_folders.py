"""The user's own config folders (`--config-dir`, `hydra.searchpath`), checked before they are read.

Composing a YAML from elsewhere can do harm: aliases of aliases expand without end, and keys under `hydra` name
callbacks that Hydra calls. A folder with such a file is refused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

MAX_ALIASES = 20
_HYDRA = re.compile(r"""(^|[\s{,"'/@])hydra["']?\s*[.:/@]|@package\s+hydra""", re.MULTILINE)


def named(config_dirs: Iterable[str], overrides: Sequence[str]) -> list[str]:
    """The folders that a command line names, as written."""
    values = [text.partition("=")[2] for text in overrides if text.startswith("hydra.searchpath=")]
    names = [name.strip(" '\"") for value in values for name in value.strip("[]").split(",")]
    return [*config_dirs, *(name.removeprefix("file://") for name in names if name)]


def folders(config_dirs: Iterable[str], overrides: Sequence[str]) -> tuple[tuple[Path, ...], list[tuple[str, str]]]:
    """The folders that may be composed from, and the problems of the others: (where, what)."""
    sound, problems = [], []
    for name in named(config_dirs, overrides):
        folder = Path(name).expanduser().resolve()
        of_folder = list(_problems(folder)) if folder.is_dir() else [("--config-dir", f"{name} is not a folder")]
        problems += of_folder
        sound += [] if of_folder else [folder]
    return tuple(sound), problems


def _problems(folder: Path) -> Iterator[tuple[str, str]]:
    import yaml

    for path in sorted(folder.rglob("*.y*ml")):
        try:
            text = path.read_text(encoding="utf-8")
            # Events, not objects: nothing is expanded yet.
            aliases = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            yield str(path), f"is not valid YAML: {' '.join(str(error).split())}"
            continue
        if aliases > MAX_ALIASES:
            yield str(path), f"has {aliases} YAML aliases, at most {MAX_ALIASES} are allowed"
        # Of comments only the `@package` line means something to Hydra.
        lines = [line for line in text.splitlines() if "@package" in line or not line.lstrip().startswith("#")]
        if _HYDRA.search("\n".join(lines)):
            yield str(path), "sets keys of Hydra itself, which are taken from the command line only"
