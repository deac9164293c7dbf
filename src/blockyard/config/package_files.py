"""The package's own YAML files and Hydra's, each parsed once a process.

Hydra parses every file of a defaults list again for each set of choices, which is a third of the time that composing
takes. These files do not change while a process runs; those of a user's own folders may, and are read each time.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, cast

from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType

from blockyard.config import catalog

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.plugins.config_source import ConfigResult


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
