"""The node `init` of a config: left out where it says nothing, and filled in where weights are taken."""

from __future__ import annotations

from typing import Any

from blockyard.config import catalog
from blockyard.config.schema import RESERVED, options
from blockyard.config.targets import allow_of, allowed, locate
from blockyard.config.tree import is_node
from blockyard.contracts import Issue
from blockyard.errors import UserError

KEY = "init"


def resolve(config: dict[str, Any], choices: dict[str, str | None], issues: list[Issue]) -> None:
    """Put the hash of the weights that a run starts from into its config, in place.

    A config whose weights are drawn has no such node, as it had before there was one, so its identity is the same.
    """
    node = config.get(KEY)
    if not is_node(node):
        return
    assert isinstance(node, dict)
    if node == catalog.content(catalog.choices(KEY)["default"].path):
        del config[KEY]
        choices.pop(KEY, None)
        return
    target = str(node["_target_"])
    if not allowed(target, allow_of(config)):
        return  # `check` says so, as it does of values that do not fit
    try:
        kind = locate(target)
        allowed_options = options(kind)
        if any(
            name not in allowed_options or allowed_options[name].problem(node[name])
            for name in node
            if name not in RESERVED
        ):
            return
        config[KEY] = kind.resolved(node, str(config.get("outputs") or "outputs"))  # type: ignore[attr-defined]
    except UserError as error:
        issues.append(Issue("init.from", str(error).removeprefix("init.from: ").removeprefix("init.from=")))
    except (ValueError, AttributeError):
        return
