"""Artifacts of a W&B run besides metrics: weights, the data that they came from, a sweep's plan and page, samples.

    data-FINGERPRINT (dataset) ──▶ run ──▶ weights-ID (model)          of a cell
                                   run ──▶ sweep-NAME (sweep)          of a comparison

An artifact of weights holds `model.safetensors`, `config.yaml` and `run.json`: the folder that W&B downloads it to is
one that `blockyard.load` reads. Data itself is not uploaded, only its fingerprint and its sizes.
"""

from __future__ import annotations

import os
import tempfile
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockyard.atomic_files import read_member, write_json, write_yaml
from blockyard.runs.checkpoint import BEST, LAST, PREFIX, read
from blockyard.runs.folder import CONFIG, RUN, SOURCE_TOKENIZER, TOKENIZER, RunFolder
from blockyard.runs.weights_file import WEIGHTS, write_weights

if TYPE_CHECKING:
    import numpy as np

    from blockyard.engine.loggers.shown_samples import ShownSample

_CHECKPOINTS = {"best": BEST, "last": LAST}


def log_weights(run: Any, folder: RunFolder, which: Sequence[str]) -> None:
    """Log the weights of a finished run as versions of one artifact, each with its alias, best or last."""
    import wandb

    folder.check_members()
    facts, metrics = folder.facts(), folder.summary().get("metrics", {})
    data = facts.get("data") or {}
    if data.get("fingerprint"):
        _use(
            run,
            wandb.Artifact(f"data-{str(data['fingerprint'])[:12]}", "dataset", metadata=dict(data)),
            "data.json",
            data,
        )
    kept: dict[str, Any] = {key: facts[key] for key in ("identity", "choices", "data") if key in facts}
    for alias in which:
        content = read(folder.checkpoints / _CHECKPOINTS[alias], identity=folder.identity, seed=folder.seed)
        step = int(content.get("global_step") or 0)
        about: dict[str, Any] = {**kept, "run": folder.name, "seed": folder.seed, "step": step}
        if alias == "best":  # of which the summary is
            about["metrics"] = metrics
        artifact = wandb.Artifact(f"weights-{run.id}", "model", metadata=about)
        path = folder.path / "wandb" / "artifacts" / alias  # from where an offline run is synced
        path.mkdir(parents=True, exist_ok=True)
        weights = {k.removeprefix(PREFIX): v for k, v in content["state_dict"].items() if k.startswith(PREFIX)}
        write_weights(path / WEIGHTS, weights)
        write_yaml(path / CONFIG, folder.shown)
        export = {"run": folder.name, "checkpoint": _CHECKPOINTS[alias], "step": step}
        write_json(path / RUN, {**kept, "resumes": [], "export": export}, checked=True)
        names = [CONFIG, RUN, WEIGHTS]
        for name in (TOKENIZER, SOURCE_TOKENIZER):
            if os.path.lexists(folder.path / name):
                (path / name).write_bytes(read_member(folder.path / name))
                names.append(name)
        for name in names:
            artifact.add_file(str(path / name), name=name, policy="immutable")
        run.log_artifact(artifact, aliases=[alias])


def log_sweep(run: Any, name: str, folder: Path, files: Sequence[str], metadata: Mapping[str, Any]) -> None:
    """Log the files of a sweep's folder that are there as one artifact."""
    import wandb

    artifact = wandb.Artifact(f"sweep-{name}", "sweep", metadata=dict(metadata))
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            if os.path.lexists(folder / file):
                copy = Path(scratch) / file
                copy.write_bytes(read_member(folder / file))
                artifact.add_file(str(copy), name=file, policy="mutable")
    run.log_artifact(artifact)


def _use(run: Any, artifact: Any, name: str, content: Mapping[str, Any]) -> None:
    """Declare an artifact as an input of the run, offline too, where W&B's `use_artifact` refuses."""
    with tempfile.TemporaryDirectory() as scratch:
        write_json(Path(scratch) / name, dict(content))
        artifact.add_file(str(Path(scratch) / name), name=name, policy="mutable")
    run._log_artifact(artifact, is_user_created=True, use_after_commit=True)


def sample_table(shown: Sequence[ShownSample], folder: Path) -> Any:
    """Return a table with a row for each sample; columns that no sample has are left out.

    folder: for the files of sounds
    """
    import wandb

    def sound(each: ShownSample) -> Any:
        return None if each.sound is None else wandb.Audio(str(_wav(folder / f"{each.sample}.wav", *each.sound)))

    content: dict[str, list[Any]] = {
        "sample": [each.sample for each in shown],
        "picture": [None if each.picture is None else wandb.Image(each.picture) for each in shown],
        "sound": [sound(each) for each in shown],
        "text": [each.text for each in shown],
        "target": [each.target for each in shown],
        "predicted": [each.predicted for each in shown],
        "loss": [each.loss for each in shown],
    }
    columns: list[str | int] = [name for name, values in content.items() if any(value is not None for value in values)]
    rows = [list(row) for row in zip(*(content[str(name)] for name in columns), strict=True)]
    return wandb.Table(columns=columns, data=rows, allow_mixed_types=True)


def _wav(path: Path, samples: np.ndarray, rate: int) -> Path:
    """Write a sound as 16-bit WAV, which needs no library, and return its path. samples: (n,), from -1 to 1"""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
    return path
