"""The user's own config folders (`--config-dir`, `hydra.searchpath`), which may come from a stranger, and those that
installed packages bring.

Hydra never opens a file of such a folder by itself: it reads through `UserFolder`, which passes on what
`user_yaml.read` finds sound, wherever links lead. A folder with an unsound file among the choices of a family is
refused as a whole.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote_to_bytes

from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from blockyard.config import catalog, user_yaml
from blockyard.config.installed import VARIABLE, Installed, installed
from blockyard.config.local_path import url_problem
from blockyard.config.override_grammar import parse_override

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl


KEY = "hydra.searchpath"
SCHEME = "userfolder"


def named(config_dirs: Iterable[str], overrides: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The folders that a command line names, as written, and the problems of the others: (where, what)."""
    names, problems = list(config_dirs), []
    for text in overrides:
        if text.partition("=")[0] != KEY:
            continue
        try:
            value = parse_override(text).value()
        except ValueError as error:
            problems.append((KEY, f"cannot parse {text!r} ({error})"))
            continue
        if isinstance(value, list) and all(isinstance(name, str) or hasattr(name, "text") for name in value):
            names += [str(getattr(name, "text", name)).removeprefix("file://") for name in value]
        else:
            problems.append((KEY, f"{text.partition('=')[2]!r} is not a list of folders"))
    return names, problems


def folders(config_dirs: Iterable[str], overrides: Sequence[str]) -> tuple[tuple[Path, ...], list[tuple[str, str]]]:
    """The folders that may be composed from, and the problems of the others: (where, what)."""
    names, problems = named(config_dirs, overrides)
    sound: list[Path] = []
    for name in names:
        folder, of_folder = _sound(name)
        problems += of_folder
        sound += [folder] if folder is not None and not of_folder else []
    for each in installed():
        of_folder = [(each.name, each.problem)] if each.folder is None else _problems(each.folder)
        of_folder += _taken(each, sound)
        problems += [(where, f"{what}; {VARIABLE}=none leaves installed packages out") for where, what in of_folder]
        sound += [each.folder] if each.folder is not None and not of_folder else []
    return tuple(sound), problems


def _taken(package: Installed, others: Sequence[Path]) -> list[tuple[str, str]]:
    """The choices of an installed package whose names are in use: neither may hide the other."""
    if package.folder is None:
        return []
    return [
        (package.name, f"brings {family}={path.stem}, which {catalog.origin(taken[path.stem])} has already")
        for family in catalog.groups()
        if (paths := sorted((package.folder / family).glob("*.yaml")))
        if (taken := catalog.choices(family, tuple(others)))
        for path in paths
        if path.stem in taken and taken[path.stem].path != path
    ]


def _sound(name: str) -> tuple[Path | None, list[tuple[str, str]]]:
    """The folder of a name, and its problems."""
    if address := url_problem(name):
        return None, [("--config-dir", address)]
    try:
        folder = Path(name).expanduser().resolve()
        if not name or not folder.is_dir():
            return None, [("--config-dir", f"{name} is not a folder")]
        return folder, _problems(folder)
    except (OSError, RuntimeError, ValueError) as error:  # too long a name, links in a circle, a NUL byte, no home
        return None, [("--config-dir", f"{name[:200]!r} cannot be read: {getattr(error, 'strerror', None) or error}")]


def _problems(folder: Path) -> list[tuple[str, str]]:
    problems = [(str(folder / "hydra"), user_yaml.HYDRA)] if os.path.lexists(folder / "hydra") else []
    for family in catalog.groups():
        for path in sorted((folder / family).glob("*.yaml")):
            try:
                user_yaml.read(path)
            except user_yaml.UnsafeFile as unsafe:
                problems.append((str(unsafe.path), unsafe.reason))
    return problems


def searchpath(folders: Sequence[Path]) -> list[str]:
    """The override that makes Hydra read these folders, through `UserFolder`."""
    if not folders:
        return []
    _register()
    paths = [f"'{SCHEME}://{quote(os.fsencode(folder))}'" for folder in folders]
    return [f"{KEY}=[{','.join(paths)}]"]


@cache
def _register() -> None:
    """Tell Hydra how to read a `userfolder://` path."""
    from hydra.core.plugins import Plugins

    Plugins.instance().register(UserFolder)


# The config source of `userfolder://` paths: how Hydra reads a user's config folder, sound files only.

MAX_READS = 1_000  # of files by one composition


class UserFolder(ConfigSource):
    """A config folder of which Hydra sees the sound files only, and nothing in a group of its own."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        CountedFile.reads = 0  # a composition makes its sources anew

    @staticmethod
    def scheme() -> str:
        """The first part of its paths."""
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file. Raises `user_yaml.UnsafeFile` where it is not sound."""
        text = user_yaml.read(self._path(self._normalize_file_name(config_path)))
        header = ConfigSource._get_header_dict(text[:512])
        return CountedFile(self.provider, str(self._path("")), OmegaConf.load(io.StringIO(text)), header)

    def is_group(self, config_path: str) -> bool:
        """Whether there is a folder that Hydra may see."""
        return self._visible(config_path) and self._path(config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Whether there is a file that Hydra may see, sound or not."""
        name = self._normalize_file_name(config_path)
        return self._visible(name) and os.path.lexists(self._path(name)) and not self._path(name).is_dir()

    def available(self) -> bool:
        """Always: a folder that does not exist was refused before."""
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """The names of the groups and files in a group."""
        names: list[Any] = []
        for name in os.listdir(self._path(config_path)):
            self._list_add_result(names, os.path.join(config_path, name), name, results_filter)
        return sorted(set(names))

    def _path(self, config_path: str) -> Path:
        return Path(os.fsdecode(unquote_to_bytes(self.path))) / config_path

    @staticmethod
    def _visible(config_path: str) -> bool:
        """Whether a path stays inside the folder and outside Hydra's own groups."""
        parts = config_path.split("/")
        return ".." not in parts and parts[0] != "hydra" and (not config_path or parts[0] != "")


class CountedFile(ConfigResult):
    """A file that is refused once Hydra has built on those of its folder too often: lists that fan out."""

    reads = 0  # of all files, since the last source was made

    def __getattribute__(self, name: str) -> Any:
        if name == "defaults_list":
            CountedFile.reads += 1
            if CountedFile.reads > MAX_READS:
                raise user_yaml.UnsafeFile(Path(self.path), f"its defaults lists lead to more than {MAX_READS:,} files")
        return super().__getattribute__(name)


# The package's own YAML files and Hydra's, each parsed once a process.
#
# Hydra parses every file of a defaults list again for each set of choices, which is a third of the time that composing
# takes. These files do not change while a process runs; those of a user's own folders may, and are read each time.

_PARSED: dict[tuple[str, str], bytes] = {}


class PackageFiles(ConfigRepository):
    """Hydra's access to config files, which keeps what does not change. Results are copies: Hydra writes into them."""

    def load_config(self, config_path: str) -> ConfigResult | None:
        """The parsed file of a path such as `block/pre_norm`, None if there is none."""
        source = self._find_object_source(config_path=config_path, object_type=ObjectType.CONFIG)
        if source is None or not _is_fixed(folder := f"{source.scheme()}://{source.path}"):
            return super().load_config(config_path)
        key = (folder, config_path)
        if key not in _PARSED:
            _PARSED[key] = pickle.dumps(super().load_config(config_path))
        return cast("ConfigResult", pickle.loads(_PARSED[key]))


def use_package_files() -> None:
    """Make the Hydra that is initialised in this process read its files through `PackageFiles`."""
    from hydra.core.global_hydra import GlobalHydra

    loader = cast("ConfigLoaderImpl", GlobalHydra.instance().config_loader())
    loader.repository = PackageFiles(loader.config_search_path)


def _is_fixed(folder: str) -> bool:
    return folder in (f"file://{catalog.conf_dir()}", "pkg://hydra.conf", "structured://")
