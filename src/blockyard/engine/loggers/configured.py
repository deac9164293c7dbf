"""The logger that a config names."""

from __future__ import annotations

from typing import Any

from blockyard.engine.loggers.base import RunLogger
from blockyard.errors import UserError


def run_logger(config: dict[str, Any]) -> RunLogger:
    """Build the logger of a config; a Lightning `Logger` is wrapped. Raises UserError where it cannot be built."""
    from blockyard.config.build import Components  # imports torch

    try:
        logger = Components(config).node("logger")
    except UserError:
        raise
    except Exception as error:  # a library's constructor may fail in any way, also because a package is missing
        target = (config.get("logger") or {}).get("_target_")
        raise UserError(f"logger {target} cannot be built ({type(error).__name__}: {error}), or logger=none") from error
    if isinstance(logger, RunLogger):
        return logger
    from blockyard.engine.loggers.lightning import LightningLogger

    return LightningLogger(logger)
