"""The user's own config folders: `--config-dir` and `hydra.searchpath`, looked over before they are read.

A YAML from elsewhere can do harm by being composed: aliases of aliases expand without end, and the
keys under `hydra` name callbacks that Hydra calls. Such a folder is refused whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

MOST_ALIASES = 20
_HYDRA = re.compile(r"""(^|[\s{,"'/@])hydra["']?\s*[.:/@]|@package\s+hydra""", re.MULTILINE)


def named(config_dirs: Iterable[str], words: Sequence[str]) -> list[str]:
    """The folders that a command line names, as written."""
    searched = [word.partition("=")[2] for word in words if word.startswith("hydra.searchpath=")]
    parts = [part.strip(" '\"") for text in searched for part in text.strip("[]").split(",")]
    return [*config_dirs, *(part.removeprefix("file://") for part in parts if part)]


def folders(config_dirs: Iterable[str], words: Sequence[str]) -> tuple[tuple[Path, ...], list[tuple[str, str]]]:
    """The folders that may be composed from, and what is wrong with the others: (where, what)."""
    good, problems = [], []
    for name in named(config_dirs, words):
        folder = Path(name).expanduser().resolve()
        found = [("--config-dir", f"{name} is no folder")] if not folder.is_dir() else list(_problems(folder))
        problems += found
        good += [] if found else [folder]
    return tuple(good), problems


def _problems(folder: Path) -> Iterator[tuple[str, str]]:
    import yaml

    for path in sorted(folder.rglob("*.y*ml")):
        try:
            text = path.read_text(encoding="utf-8")
            # Events, not objects: nothing is expanded yet.
            count = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            yield str(path), f"is no readable YAML: {' '.join(str(error).split())}"
            continue
        if count > MOST_ALIASES:
            yield str(path), f"holds {count} YAML aliases, at most {MOST_ALIASES} are read"
        # Of comments only the `@package` line means something to Hydra.
        if _HYDRA.search("\n".join(s for s in text.splitlines() if "@package" in s or not s.lstrip().startswith("#"))):
            yield str(path), "sets keys of Hydra itself, which are taken from the command line only"
