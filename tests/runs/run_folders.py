"""Run folders as a run leaves them, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockyard.atomic_files import write_json, write_yaml
from blockyard.runs.identity import identity
from blockyard.runs.status import Status, write_status

CHOICES = ("position", "block")


def run_folder(outputs: Path, name: str, accuracy: float | None = 0.5, *, state: Any = "done", **config: Any) -> Path:
    """A run NAME-HASH/sSEED with its four files; choices: those of position and block in the config.

    A name without a hash, such as vit/s0, gets the identity of the config.
    """
    arm, _, seed = name.partition("/")
    if "-" not in arm:
        name = f"{arm}-{identity(_options(seed, config))}/{seed}"
    path = outputs / name
    path.mkdir(parents=True)
    choices = {family: config.get(family, "none") for family in CHOICES}
    write_yaml(path / "config.yaml", _options(seed, config))
    recorded = path.parent.name.rpartition("-")[2]
    write_json(path / "run.json", {"choices": {**choices, "preset": None}, "identity": recorded})
    minute = len(list(outputs.glob("*/s*")))
    write_status(path, Status(state, started=f"2026-11-22T10:{minute:02d}:00.000Z", ended="2026-11-22T11:00:00.000Z"))
    if accuracy is not None:
        metrics = {"test/accuracy": accuracy, "test/loss": 1 - accuracy}
        directions = {"test/accuracy": "max", "test/loss": "min"}
        write_json(
            path / "summary.json", {"metrics": metrics, "directions": directions, "parameters": {"trainable": 7}}
        )
    return path


def _options(seed: str, config: dict[str, Any]) -> dict[str, Any]:
    options = {key: value for key, value in config.items() if key not in CHOICES}
    return {"seed": int(seed[1:]), "model": {"dim": 32}, "optimizer": {"lr": 0.001}, **options}


def run_config(outputs: Path, **more: Any) -> dict[str, Any]:
    """The least that a run folder is created from."""
    return {"seed": 0, "name": "run", "outputs": str(outputs), "force": False, "model": {"dim": 4}, **more}
