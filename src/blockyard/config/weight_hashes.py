"""Hashes of trained weights that a config records: the weights that a run starts from, and a teacher's.

A frozen config then identifies the weights, whatever is at their path later.
"""

from __future__ import annotations

from blockyard.config.build import TEACHER
from blockyard.config.placed_nodes import fits, options_of
from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import allow_of, locate
from blockyard.contracts import Issue
from blockyard.errors import UserError


def fill(config: Node, issues: list[Issue]) -> None:
    """Record the hashes in place. Weights that cannot be read are issues."""
    _fill_init(config, issues)
    _fill_teacher(config, issues)


def _fill_init(config: Node, issues: list[Issue]) -> None:
    """Put the hash of the weights that a run starts from into the node `init`."""
    node = config.get("init")
    if not is_node(node):
        return
    declared = options_of(node, allow_of(config))
    if not declared or not all(fits(node, name, declared) for name in node):
        return  # `check` says so
    try:
        config["init"] = locate(str(node["_target_"])).resolved(node, _outputs(config))  # type: ignore[attr-defined]
    except UserError as error:
        issues.append(Issue("init.from", str(error).removeprefix("init.from: ").removeprefix("init.from=")))
    except (ValueError, AttributeError):
        return  # a class of the user's own


def _fill_teacher(config: Node, issues: list[Issue]) -> None:
    """Put the hash of the model that teaches into the node `objective`."""
    node = config.get("objective")
    if not is_node(node) or node.get("teacher") is None:
        return
    declared = options_of(node, allow_of(config))
    keys = [key for key in ("teacher", "teacher_sha256") if key in node]
    if not all(fits(node, key, declared) for key in keys):
        return  # `check` says so
    try:
        config["objective"] = locate(TEACHER).resolved(node, _outputs(config))  # type: ignore[attr-defined]
    except UserError as error:
        issues.append(Issue("objective.teacher", str(error).removeprefix("objective.teacher=")))


def _outputs(config: Node) -> str:
    """Return the folder of runs. A run is found in it by its name."""
    return str(config.get("outputs") or "outputs")
