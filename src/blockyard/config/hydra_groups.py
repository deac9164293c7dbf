"""The package's config groups in a Hydra application of the user's own.

`register()` is called before the function that `@hydra.main` decorates. The application's primary config then has
`blockyard` in its defaults list, in place of the defaults list of `conf/config.yaml`, and every group of the package in
its search path, behind the application's own. Nothing is registered unless it is called: a package `hydra_plugins` or
an entry point would put the groups into every Hydra application of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from blockyard.config.build import CONTRACTS, OPTIONAL, RUNTIME_CONTRACTS
from blockyard.config.choices import catalog
from blockyard.config.compose import Composed, of_application
from blockyard.config.defaults import default_node, fill_defaults
from blockyard.config.schema import Root, options
from blockyard.config.tree import Node
from blockyard.errors import UserError

NAME = "blockyard"


class GroupFiles(FileConfigSource):
    """The package's folder of groups, with every option in every node, so that a command line can set each of them.

    The files themselves hold only the options that differ from the signatures.
    """

    @staticmethod
    def scheme() -> str:
        """The first part of its paths."""
        return NAME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read a file; complete a choice of a family."""
        result = super().load_config(config_path)
        family, _, name = config_path.removesuffix(".yaml").partition("/")
        if family in (*CONTRACTS, *RUNTIME_CONTRACTS):
            result.config = OmegaConf.create(default_node(family, name))
        return result


class GroupsPath(SearchPathPlugin):
    """Puts the package's groups at the end of an application's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folder, unless it is in the search path already, as in the package's own commands."""
        if all(entry.path != f"file://{catalog.conf_dir()}" for entry in search_path.get_path()):
            search_path.append(provider=NAME, path=f"{NAME}://{catalog.conf_dir()}")


def register() -> None:
    """Let the Hydra applications of this process find the groups, and the config `blockyard`."""
    for plugin in (GroupFiles, GroupsPath):
        Plugins.instance().register(plugin)
    content = catalog.content(catalog.conf_dir() / "config.yaml")
    del content["hydra"]  # of our own commands; an application has its own folders and logging
    fill_defaults(content)  # seed, name and the other keys beside the families
    ConfigStore.instance().store(name=NAME, node=content, provider=NAME)


def composed_by_hydra(config: Mapping[str, Any]) -> Composed:
    """Return the config of an application, with every problem; its keys that are none of the package's are left out."""
    plain: Any = OmegaConf.to_container(OmegaConf.create(config), resolve=True)  # type: ignore[call-overload]
    ours = {*catalog.run_keys(), *options(Root), "match"}
    node: Node = {key: value for key, value in plain.items() if key in ours}
    missing = [family for family in (*CONTRACTS, *RUNTIME_CONTRACTS) if family not in node and family not in OPTIONAL]
    if missing:
        raise UserError(
            f"the config has no {', '.join(missing)}; put `blockyard` into the defaults list of the application"
        )
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    choices = {key: chosen[catalog.hydra_key(key)] for key in catalog.run_keys() if catalog.hydra_key(key) in chosen}
    return of_application(node, choices)
