"""What Hydra reads config files through: a user's config folders, sound files only, and the package's own files.

Apart from `user_folders` because these classes derive from Hydra's, which completion does not import.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote_to_bytes

from hydra._internal import defaults_list
from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

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
        """Read a file. Raises `user_yaml.UnsafeFileError` where it is not sound."""
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
                raise user_yaml.UnsafeFileError(
                    Path(self.path), f"its defaults lists lead to more than {MAX_READS:,} files"
                )
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
            parsed = cast("ConfigResult", super().load_config(config_path))
            parsed.plain = _plain(parsed)  # type: ignore[attr-defined]
            _PARSED[key] = pickle.dumps(parsed)
        return cast("ConfigResult", pickle.loads(_PARSED[key]))


_interpolation_map = defaults_list._create_interpolation_map


def _interpolation_map_where_needed(
    overrides: Overrides, defaults: list[InputDefault], self_added: bool
) -> DictConfig | None:
    """Hydra's map from families to choices, by which it resolves `- norm: ${block}` in a defaults list.

    Hydra builds it for each of thirty files and looks into it only where the list has an interpolation, as none of the
    package's has. That is a third of the time of a composition.
    """
    if any(default.is_interpolation() for default in defaults):
        return _interpolation_map(overrides, defaults, self_added)
    return None


def use_package_files() -> None:
    """Make the Hydra that is initialised in this process read its files through `PackageFiles`."""
    from hydra.core.global_hydra import GlobalHydra

    defaults_list._create_interpolation_map = _interpolation_map_where_needed  # type: ignore[assignment]

    loader = cast("ConfigLoaderImpl", GlobalHydra.instance().config_loader())
    loader.repository = PackageFiles(loader.config_search_path)


def merge_package_files(overrides: Sequence[str]) -> tuple[Node, dict[str, str | None]]:
    """Return what Hydra composes from choices of the package, without Hydra's own keys, and the choice of each family.

    Hydra decides which files there are and in which order. They are merged as plain data, not as OmegaConf's nodes,
    each of which is copied and linked to its parent again and again: that is two thirds of the time. Types are checked
    by the schema afterwards, so the package's files lose nothing by it.
    """
    from hydra.core.global_hydra import GlobalHydra

    loader = cast("ConfigLoaderImpl", GlobalHydra.instance().config_loader())
    parsed, repository = loader._parse_overrides_and_create_caching_repo("config", list(overrides))
    files = defaults_list.create_defaults_list(repository, "config", parsed, prepend_hydra=False, skip_missing=False)
    content: Node = {}
    for file in files.defaults:
        loaded = cast("ConfigResult", repository.load_config(str(file.config_path)))
        node = getattr(loaded, "plain", None) or _plain(loaded)
        package = loaded.header["package"] if file.package is None else file.package
        for part in reversed(package.split(".") if package else []):
            node = {part: node}
        _merge(content, node)
    content.pop("hydra", None)
    return content, dict(files.overrides.known_choices)


def _plain(loaded: ConfigResult) -> Node:
    """The content of a file without its defaults list."""
    content = cast("Node", OmegaConf.to_container(loaded.config, resolve=False))
    return {key: value for key, value in content.items() if key != "defaults"}


def _merge(into: Node, node: Node) -> None:
    """Merge in place as OmegaConf does: mappings key by key, all else replaced, a missing value (`???`) left out."""
    for key, value in node.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif value != "???" or key not in into:
            into[key] = value


def _is_fixed(folder: str) -> bool:
    return folder in (f"file://{catalog.conf_dir()}", "pkg://hydra.conf", "structured://")
