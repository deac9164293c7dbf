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
    data = facts.get("data", {})
    if data.get("fingerprint"):
        dataset = wandb.Artifact(f"data-{str(data['fingerprint'])[:12]}", "dataset", metadata=dict(data))
        _use(run, dataset, "data.json", data)
    kept: dict[str, Any] = {key: facts[key] for key in ("identity", "choices", "data") if key in facts}
    for alias in which:
        content = read(folder.checkpoints / _CHECKPOINTS[alias], identity=folder.identity, seed=folder.seed)
        step = int(content.get("global_step") or 0)
        about: dict[str, Any] = {**kept, "run": folder.name, "seed": folder.seed, "step": step}
        if alias == "best":  # the summary is about them
            about["metrics"] = metrics
        artifact = wandb.Artifact(f"weights-{run.id}", "model", metadata=about)
        path = folder.path / "wandb" / "artifacts" / alias  # from where an offline run is synced
        path.mkdir(parents=True, exist_ok=True)
        weights = {}
        for key, tensor in content["state_dict"].items():
            if key.startswith(PREFIX):
                weights[key.removeprefix(PREFIX)] = tensor
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

    rows: list[dict[str, Any]] = []
    for sample in shown:
        row: dict[str, Any] = {"sample": sample.sample, "picture": None, "sound": None, "text": sample.text}
        if sample.picture is not None:
            row["picture"] = wandb.Image(sample.picture)
        if sample.sound is not None:
            row["sound"] = wandb.Audio(str(_wav(folder / f"{sample.sample}.wav", *sample.sound)))
        rows.append({**row, "target": sample.target, "predicted": sample.predicted, "loss": sample.loss})
    columns: list[str | int] = []
    if rows:
        columns += [name for name in rows[0] if any(row[name] is not None for row in rows)]
    data = [[row[str(name)] for name in columns] for row in rows]
    return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def _wav(path: Path, samples: np.ndarray, rate: int) -> Path:
    """Write a sound as 16-bit WAV, which needs no library, and return its path. samples: (n,), from -1 to 1"""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clip(-1, 1) * 32767).round().astype("<i2").tobytes())
    return path
