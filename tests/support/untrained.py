"""A folder of a run that was never trained, as `blockyard export format=safetensors` writes one."""

from __future__ import annotations

from pathlib import Path

from blockyard.atomic_files import write_json, write_yaml
from blockyard.config.build import Components
from blockyard.runs.identity import identity
from blockyard.runs.weights_file import WEIGHTS, write_weights
from tests.support.tiny import configured


def untrained(folder: Path, *overrides: str) -> Path:
    """Write the initial weights of a config, and return the folder."""
    config, choices = configured("logger=none", *overrides)
    folder.mkdir(parents=True)
    write_yaml(folder / "config.yaml", config)
    write_json(folder / "run.json", {"identity": identity(config), "choices": choices}, checked=True)
    write_weights(folder / WEIGHTS, Components(config).model(0).state_dict())
    return folder
