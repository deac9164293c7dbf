"""The loggers that a config names."""

from __future__ import annotations

from typing import Any

from blockyard.config.tree import Node, is_node
from blockyard.config.untrusted.targets import allow_of
from blockyard.engine.faults.own_generators import own_generators
from blockyard.engine.loggers.base import RunLogger
from blockyard.errors import UserError
from blockyard.runs.redact import redact

_OWN = "blockyard."


def run_loggers(config: Node) -> list[RunLogger]:
    """Build the loggers of a config, one or several by name; a Lightning `Logger` is wrapped.

    Raises UserError where one cannot be built.
    """
    node = config.get("logger")
    if is_node(node):
        return [_built(config, "logger", node)]
    return [_built(config, f"logger.{name}", each) for name, each in (node or {}).items() if each is not None]


def _built(config: Node, key: str, node: Any) -> RunLogger:
    from blockyard.config.instantiate import instantiate

    if str((node or {}).get("_target_")).startswith(_OWN):  # none of ours has a secret among its options
        node = redact(node)
    try:
        with own_generators():
            logger = instantiate(node, allow_of(config))
    except UserError:
        raise
    except Exception as error:  # a library's constructor may fail in any way, also because a package is missing
        target = (node or {}).get("_target_")
        raise UserError(f"{key} {target} cannot be built ({type(error).__name__}: {error}), or logger=none") from error
    if isinstance(logger, RunLogger):
        return logger
    from blockyard.engine.loggers.lightning import LightningLogger

    return LightningLogger(logger)
