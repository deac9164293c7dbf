"""The config of a run as loggers get it: what was chosen by its short name, and no wiring.

choices: {position: rope, block: pre_norm, ...}    to group and filter runs by
position: {theta: 10000.0, ...}, optimizer: ...    the options, under the keys of overrides
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockyard.runs.folder import RunFolder

CHOICES = "choices"
# What is the same for every run, says where it lies, or is written elsewhere in the record.
_LEFT_OUT = ("outputs", "force", "allow", "logger", "executor", "hydra", "name", "tags")
_WIRING = ("_partial_", "_recursive_", "_convert_")
_OWN = "blockyard."


def presented(folder: RunFolder) -> dict[str, Any]:
    """The config of a run without secrets, as plain nested data; classes of others keep their `_target_`."""
    config = folder.shown
    chosen = folder.facts().get(CHOICES)
    names = {family: name for family, name in (chosen if isinstance(chosen, dict) else {}).items() if name is not None}
    kept = {key: _plain(value) for key, value in config.items() if key not in _LEFT_OUT and value not in (None, {}, [])}
    return {CHOICES: {family: name for family, name in names.items() if family not in _LEFT_OUT}, **kept}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            str(key): _plain(each)
            for key, each in value.items()
            if key not in _WIRING and not (key == "_target_" and str(each).startswith(_OWN))
        }
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
