"""Resume a run whose data files lie elsewhere now: their content must be that of the run.

The path of the data stays in the frozen config, and so the identity; only this process reads the other path.
"""

from __future__ import annotations

from typing import Any

from blockyard.errors import UserError
from blockyard.runs.folder import PATHS, RunFolder


def pop_moved(folder: RunFolder, overrides: dict[str, Any]) -> dict[str, Any]:
    """Removes the paths of data from `overrides` that differ from those of the run, and returns them by option.

    Raises UserError where nothing tells whether the data are the same, and where other processes read the old path.
    """
    data = folder.config.get("data") or {}
    moved = {
        name: overrides.pop(f"data.{name}")
        for name in PATHS
        if name in data and isinstance(value := overrides.get(f"data.{name}"), str) and value != data[name]
    }
    if not moved:
        return {}
    shown = ", ".join(f"data.{name}={value}" for name, value in moved.items())
    advice = f"put a link to the data at {', '.join(str(data[name]) for name in moved)} instead"
    if not _fingerprint(folder):
        raise UserError(f"{shown}: {folder.name} recorded no fingerprint of its data to compare with; {advice}")
    trainer = {**(folder.config.get("trainer") or {}), **_options(overrides, "trainer")}
    if trainer.get("devices", 1) != 1 or trainer.get("num_nodes", 1) != 1:
        raise UserError(f"{shown}: the other processes of a run read its own config.yaml; {advice}")
    return moved


def check_moved(folder: RunFolder, config: dict[str, Any]) -> None:
    """Raises UserError where the data that `config` names are not those of the run.

    config: that of the run with the new paths, checked
    """
    from blockyard.config.build import Components

    components = Components(config)
    components.load()
    recorded, now = _fingerprint(folder), components.data.fingerprint()
    if now != recorded:
        raise UserError(
            f"{folder.name} was trained on other data (fingerprint {str(recorded)[:12]}, here {now[:12]}); "
            "give the path of the same data, or start a new run with `blockyard train`"
        )


def _fingerprint(folder: RunFolder) -> str | None:
    data = folder.facts().get("data")
    return data.get("fingerprint") if isinstance(data, dict) else None


def _options(overrides: dict[str, Any], family: str) -> dict[str, Any]:
    """The overrides of options of a family, by option."""
    return {key.partition(".")[2]: value for key, value in overrides.items() if key.startswith(f"{family}.")}
