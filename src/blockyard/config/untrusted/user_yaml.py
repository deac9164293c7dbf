"""Reads a YAML file of the user's own as Hydra would read it. The file may come from a stranger.

Refused is everything that `atomic_files.strict_yaml` refuses, files that make Hydra end with a traceback, and keys of
Hydra itself.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from blockyard.atomic_files import stamp
from blockyard.atomic_files.strict_yaml import Limits, StrictLoader, StrictYamlError, load_mapping, read_text

LIMITS = Limits(size=100_000, depth=20, aliases=20, values=20_000)
HYDRA = "sets keys of Hydra itself, which are taken from the command line only"


class UnsafeFileError(ValueError):
    """A file that is not read. path: of the file; reason: why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


def read(path: Path) -> str:
    """Return the text of a file with sound content. Raises UnsafeFileError."""
    try:
        if not path.is_file():
            raise UnsafeFileError(path, "is not a regular file")
        return _read(path, stamp(path))
    except OSError as error:
        raise UnsafeFileError(path, f"cannot be read: {error.strerror}") from error
    except StrictYamlError as error:
        raise UnsafeFileError(path, str(error)) from error
    except UnsafeFileError:
        raise
    except ValueError as error:
        raise UnsafeFileError(path, " ".join(str(error).split())) from error


@lru_cache(maxsize=1024)
def _read(path: Path, _stamp: tuple[int, ...]) -> str:
    from hydra.plugins.config_source import ConfigSource

    text = read_text(path, LIMITS)
    if text.startswith("\ufeff"):
        raise StrictYamlError("begins with a byte order mark; save it as UTF-8 without one")
    content = load_mapping(text, _loader())
    _load_as_omegaconf(text)
    header = ConfigSource._get_header_dict(text[:512])
    if reaches_hydra(header["package"], content or {}):
        raise StrictYamlError(HYDRA)
    return text


def reaches_hydra(package: str | None, content: Mapping[str, object]) -> bool:
    """Return whether a file names Hydra's own keys: in its package, as a key, or in its defaults list.

    In plain cases the message then names the file. `merge` compares the keys that all files merge to.
    """
    names = [package or ""]
    entries = content.get("defaults")
    if isinstance(entries, list):
        for entry in entries:
            names += _names(entry)
    keys = [key.partition(".")[0] for key in content]
    return "hydra" in keys or any("hydra" in re.split(r"\W+", name) for name in names)


def _names(entry: Any) -> Iterator[str]:
    """Yield the groups and packages of an entry of a defaults list, and the choices, except one named hydra."""
    for text, value in entry.items() if isinstance(entry, dict) else [(entry, None)]:
        yield str(text)
        for choice in value if isinstance(value, list) else [value]:
            if choice != "hydra":  # a user may give a choice this name
                yield str(choice)


@cache
def _loader() -> type[StrictLoader]:
    """Return a strict loader that reads plain values as OmegaConf does."""
    from omegaconf._utils import get_yaml_loader

    omegaconf_loader: Any = get_yaml_loader()

    class HydraLoader(StrictLoader, omegaconf_loader):
        limits = LIMITS

    return HydraLoader


def _load_as_omegaconf(text: str) -> None:
    """Raise StrictYamlError where OmegaConf cannot read a text."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.load(io.StringIO(text))
    except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        raise StrictYamlError(" ".join((str(error) or type(error).__name__).split())) from error
