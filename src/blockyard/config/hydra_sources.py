"""Reads the config files that Hydra finds: sound files of a user's config folders, and the package's own files.

Apart from `user_folders` because these classes derive from Hydra's, and completion does not import Hydra.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote, unquote_to_bytes

from hydra import initialize_config_dir
from hydra._internal import defaults_list
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf._utils import split_key

from blockyard.config import user_folders
from blockyard.config.choices import catalog
from blockyard.config.tree import Node
from blockyard.config.untrusted import user_yaml

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.defaults_list import Overrides
    from hydra.core.default_element import InputDefault
    from omegaconf import DictConfig

SCHEME = "userfolder"
MAX_READS = 1_000  # of files by one composition
_PARSED: dict[tuple[str, str], bytes] = {}  # (folder, path of a file) -> the file as parsed, pickled
# Folders of sources -> (path, whether a file or a group) -> the index of the source that has it.
_LOCATED: dict[tuple[str, ...], dict[tuple[str, ObjectType | None], int | None]] = {}
_interpolation_map = defaults_list._create_interpolation_map


class UserFolder(ConfigSource):
    """A config folder in which Hydra sees sound files only, and nothing in a group of its own."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        CountedFile.reads = 0  # a composition makes its sources anew

    @staticmethod
    def scheme() -> str:
        """Return the first part of its paths."""
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file. Raises `user_yaml.UnsafeFileError` where it is not sound."""
        text = user_yaml.read(self._path(self._normalize_file_name(config_path)))
        header = ConfigSource._get_header_dict(text[:512])
        return CountedFile(self.provider, str(self._path("")), OmegaConf.load(io.StringIO(text)), header)

    def is_group(self, config_path: str) -> bool:
        """Return whether there is a folder that Hydra may see."""
        return self._visible(config_path) and self._path(config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether there is a file that Hydra may see, sound or not."""
        name = self._normalize_file_name(config_path)
        return self._visible(name) and os.path.lexists(self._path(name)) and not self._path(name).is_dir()

    def available(self) -> bool:
        """Return True: a folder that does not exist was refused before."""
        return True

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of the groups and files in a group."""
        names: list[Any] = []
        for name in os.listdir(self._path(config_path)):
            self._list_add_result(names, os.path.join(config_path, name), name, results_filter)
        return sorted(set(names))

    def _path(self, config_path: str) -> Path:
        return Path(os.fsdecode(unquote_to_bytes(self.path))) / config_path

    @staticmethod
    def _visible(config_path: str) -> bool:
        """Return whether a path stays inside the folder and outside Hydra's own groups."""
        parts = config_path.split("/")
        return ".." not in parts and parts[0] != "hydra" and (not config_path or parts[0] != "")


class CountedFile(ConfigResult):
    """A file that is refused once Hydra has read too many of a user's files: defaults lists that fan out."""

    reads = 0  # of all files, since the last source was made

    def __getattribute__(self, name: str) -> Any:
        if name == "defaults_list":
            CountedFile.reads += 1
            if CountedFile.reads > MAX_READS:
                raise user_yaml.UnsafeFileError(
                    Path(self.path), f"its defaults lists lead to more than {MAX_READS:,} files"
                )
        return super().__getattribute__(name)


class PackageFiles(ConfigRepository):
    """Hydra's access to config files. Files of the package and of Hydra are parsed once a process.

    Hydra parses every file of a defaults list again for each set of choices, which is a third of the time that
    composing takes. These files do not change while a process runs. Files in a user's own folders may change, and are
    read each time. Results are copies: Hydra writes into them.
    """

    _located: dict[tuple[str, ObjectType | None], int | None] | None

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        """Make the sources of a search path."""
        super().initialize_sources(config_search_path)
        folders = tuple(map(_folder, self.sources))
        self._located = None
        if _unchanging().issuperset(folders):
            self._located = _LOCATED.setdefault(folders, {})

    def __deepcopy__(self, memo: object) -> Self:
        """Return a shallow copy. Hydra copies a repository before it gives it other sources, and changes no source."""
        return copy.copy(self)

    def _find_object_source(self, config_path: str, object_type: ObjectType | None) -> ConfigSource | None:
        """Return the first source with a file or a group of that path, None if there is none."""
        if self._located is None:
            return super()._find_object_source(config_path, object_type)
        key = (config_path, object_type)
        if key not in self._located:
            source = super()._find_object_source(config_path, object_type)
            self._located[key] = None if source is None else self.sources.index(source)
        index = self._located[key]
        return None if index is None else self.sources[index]

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return the parsed file of a path such as `block/pre_norm`, None if there is none."""
        source = self._find_object_source(config_path=config_path, object_type=ObjectType.CONFIG)
        if source is None:
            return super().load_config(config_path)
        folder = _folder(source)
        if folder not in _unchanging():
            return super().load_config(config_path)
        key = (folder, config_path)
        if key not in _PARSED:
            parsed = cast("ConfigResult", super().load_config(config_path))
            parsed.plain = _plain(parsed)  # type: ignore[attr-defined]
            _PARSED[key] = pickle.dumps(parsed)
        return cast("ConfigResult", pickle.loads(_PARSED[key]))


def _folder(source: ConfigSource) -> str:
    return f"{source.scheme()}://{source.path}"


def _unchanging() -> frozenset[str]:
    """Return the folders whose files do not change while the process runs."""
    return frozenset({f"file://{catalog.conf_dir()}", "pkg://hydra.conf", "structured://"})


@dataclass(frozen=True)
class File:
    """One file of a composition.

    path: in its config folder, without suffix, such as `block/pre_norm`
    groups: the file's config group, and the groups of the files that include it
    content: at the place in the config where it belongs, without its defaults list
    """

    path: str
    groups: frozenset[str]
    content: Node


def read_files(groups: Sequence[str], folders: Sequence[Path]) -> tuple[list[File], dict[str, str | None]]:
    """Return the files of choices, in Hydra's order of merging, and the choice of each family.

    Hydra reads files here; it configures and calls nothing. Its own config is not among them.

    groups: `family=name`, one of each family
    folders: of the user's own choices
    """
    overrides = [*map(as_hydra_names_it, groups), *searchpath(folders)]
    with _initialised() as loader:
        parsed, repository = loader._parse_overrides_and_create_caching_repo("config", overrides)
        listed = defaults_list.create_defaults_list(
            repository, "config", parsed, prepend_hydra=False, skip_missing=False
        )
        parents = {str(default.config_path): default.parent for default in listed.defaults}
        files = []
        for default in listed.defaults:
            path = str(default.config_path)
            loaded = cast("ConfigResult", repository.load_config(path))
            content = getattr(loaded, "plain", None) or _plain(loaded)  # kept with files of the package
            package = loaded.header["package"] if default.package is None else default.package
            # As Hydra reads a package: `hydra[callbacks]` is a key inside `hydra` too.
            for part in reversed(split_key(package) if package else []):
                content = {part: content}
            files.append(File(path, _groups(path, parents), content))
    return files, {str(key).rpartition("@")[2]: name for key, name in listed.overrides.known_choices.items()}


def as_hydra_names_it(group: str) -> str:
    """Return `tokenizer@source_tokenizer=patch` for `source_tokenizer=patch`; `same` is no choice at all."""
    family, _, name = group.partition("=")
    if family not in catalog.OF_SOURCE:
        return group
    if name == catalog.SAME:
        return f"~{catalog.hydra_key(family)}"
    return f"{catalog.hydra_key(family)}={name}"


def searchpath(folders: Sequence[Path]) -> list[str]:
    """Return the override that makes Hydra read a user's folders, through `UserFolder`."""
    if not folders:
        return []
    Plugins.instance().register(UserFolder)
    paths = [f"'{SCHEME}://{quote(os.fsencode(folder))}'" for folder in folders]
    return [f"{user_folders.KEY}=[{','.join(paths)}]"]


@contextlib.contextmanager
def _initialised() -> Iterator[ConfigLoaderImpl]:
    """Initialise Hydra over the package's folder of configs, with its files read through `PackageFiles`.

    Afterwards the Hydra of an application around this is in force again.
    """
    # Hydra has one instance a process, and refuses a second one.
    around = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(catalog.conf_dir()), version_base="1.3"):
            defaults_list._create_interpolation_map = _interpolation_map_where_needed  # type: ignore[assignment]
            loader = cast("ConfigLoaderImpl", GlobalHydra.instance().config_loader())
            loader.repository = PackageFiles(loader.config_search_path)
            yield loader
    finally:
        GlobalHydra.instance().hydra = around


def _interpolation_map_where_needed(
    overrides: Overrides, defaults: list[InputDefault], self_added: bool
) -> DictConfig | None:
    """Return Hydra's map from families to choices, with which it resolves `- norm: ${block}` in a defaults list.

    Hydra 1.3 builds it for each of thirty files, a third of the time of a composition, and looks into it only where the
    list has an interpolation. None of the package's lists has one.
    """
    if any(default.is_interpolation() for default in defaults):
        return _interpolation_map(overrides, defaults, self_added)
    return None


def _groups(path: str | None, parents: Mapping[str, str | None]) -> frozenset[str]:
    """Return the group of a file, of the file that includes it, and so on. parents: by path, None for the first."""
    paths: list[str] = []
    while path is not None and path not in paths:  # a file may include itself
        paths.append(path)
        path = parents.get(path)
    return frozenset(path.partition("/")[0] for path in paths)


def _plain(loaded: ConfigResult) -> Node:
    """Return the content of a file without its defaults list."""
    content = cast("Node", OmegaConf.to_container(loaded.config, resolve=False))
    return {key: value for key, value in content.items() if key != "defaults"}
