"""`blockyard export format=safetensors|hf|timm`: a run's weights in a folder that others read. Nothing is pickled.

safetensors   model.safetensors under our names, config.yaml, run.json: `blockyard.load`, `init.from`
hf            config.json, model.safetensors, tokenizer.json: `from_pretrained` of transformers' class
timm          config.json, model.safetensors: `timm.create_model(NAME, checkpoint_path=..., **model_args)`
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from blockyard.atomic_files import new_folder, write_json, write_text, write_yaml
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RUN, SOURCE_TOKENIZER, TOKENIZER
from blockyard.runs.identity import identity
from blockyard.runs.load import Loaded
from blockyard.runs.provenance import provenance
from blockyard.runs.redact import redact
from blockyard.runs.weights_file import WEIGHTS, write_weights
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.graphs import write_onnx, write_pt2
from blockyard.weights.convert.matching import match
from blockyard.weights.convert.rules import convert_back
from blockyard.weights.convert.source import CONFIG as THEIR_CONFIG
from blockyard.weights.convert.source import plain
from blockyard.weights.convert.timm_models import arguments_of, describe
from blockyard.weights.lora import merge


@dataclass(frozen=True)
class Exported:
    """What an export wrote. lines: how it is read, and what is not in it."""

    folder: Path
    lines: list[str] = field(default_factory=list)


def export_weights(loaded: Loaded, to: str | Path, *, kind: str, preset: str | None = None) -> Exported:
    """Write a run's weights in one of the formats, whole or not at all.

    kind: safetensors, hf, timm, pt2 or onnx
    preset: the converter of format hf or timm; None takes the one that fits

    Raises UserError for a folder that is not empty, and for a model that no class of the library is like.
    """
    writers: dict[str, Callable[[Loaded, Path], list[str]]] = {
        "safetensors": _safetensors,
        "hf": partial(_transformers, preset=preset),
        "timm": partial(_timm, preset=preset),
        "pt2": write_pt2,
        "onnx": write_onnx,
    }
    if merge(loaded.model):  # what LoRA added is put into the weights; the model is then one without additions
        loaded = replace(loaded, config={key: node for key, node in loaded.config.items() if key != "init"})
    folder = local_path(str(to), "to").absolute()
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"to={to}: it exists; choose another folder")
    with new_folder(folder) as temporary:
        lines = writers[kind](loaded, temporary)
    return Exported(folder, [line.replace(str(temporary), str(folder)) for line in lines])


def trained(loaded: Loaded) -> Trained:
    """A loaded run as converters read it."""
    ctx: Any = loaded.model.ctx
    return Trained(loaded.config, ctx, loaded.model.state_dict())


def _safetensors(loaded: Loaded, folder: Path) -> list[str]:
    write_weights(folder / WEIGHTS, loaded.model.state_dict())
    write_yaml(folder / CONFIG, redact(loaded.config))
    facts = loaded.folder.facts()
    kept = {key: facts[key] for key in ("identity", "choices", "data") if key in facts}
    if loaded.config is not loaded.folder.config:
        kept["identity"] = identity(loaded.config)
    of = {"run": loaded.folder.name, "checkpoint": loaded.checkpoint.name, "step": loaded.step}
    write_json(folder / RUN, {**provenance(), **kept, "resumes": [], "export": of}, checked=True)
    _states(loaded, folder)
    return [f"blockyard.load('{folder}')", f"blockyard train ... init.from={folder / WEIGHTS}"]


def _states(loaded: Loaded, folder: Path) -> None:
    """What the tokenizers of a run learned."""
    own = loaded.components.source_tokenizer is not loaded.components.tokenizer
    named = {TOKENIZER: loaded.tokenizer, **({SOURCE_TOKENIZER: loaded.components.source_tokenizer} if own else {})}
    for name, tokenizer in named.items():
        if state := tokenizer.state():
            write_json(folder / name, state, checked=True)


def _transformers(loaded: Loaded, folder: Path, preset: str | None) -> list[str]:
    run = trained(loaded)
    matched = match(run, "transformers", preset, near=_preset(loaded))
    weights = convert_back(matched.foreign.rules, run.weights)
    name = matched.config.get("architectures", [matched.converter.architecture])[0]
    config = {"model_type": matched.converter.model_type, "architectures": [name], "dtype": "float32"} | matched.config
    write_text(folder / THEIR_CONFIG, plain(config))
    write_weights(folder / WEIGHTS, weights)
    lines = [f"transformers.{name}.from_pretrained('{folder}')"]
    state = loaded.tokenizer.state().get("tokenizer")
    if isinstance(state, dict):
        write_text(folder / TOKENIZER, json.dumps(state) + "\n")
        return lines
    kind = type(loaded.tokenizer).__name__
    return [*lines, f"without a tokenizer: {kind} is none of the library's; token ids are those of the run's own"]


def _timm(loaded: Loaded, folder: Path, preset: str | None) -> list[str]:
    run = trained(loaded)
    matched = match(run, "timm", preset, near=_preset(loaded))
    name, arguments = arguments_of(matched.converter.preset, matched.config)
    _, sizes = describe(name, arguments)
    other = {key: value for key, value in sizes.items() if matched.config.get(key, value) != value}
    if other:
        raise UserError(f"{name} of timm has {', '.join(f'{k}={v}' for k, v in other.items())}, the run has not")
    write_weights(folder / WEIGHTS, convert_back(matched.foreign.rules, run.weights))
    config = {"architecture": name, "num_classes": run.ctx.outputs, "model_args": arguments}
    config["timm_version"] = importlib.metadata.version("timm")
    write_text(folder / THEIR_CONFIG, plain(config))
    return [f"timm.create_model({name!r}, checkpoint_path='{folder / WEIGHTS}', **{_python(arguments)})"]


def _preset(loaded: Loaded) -> str | None:
    """The preset that a run was made of, as recorded."""
    choices = loaded.folder.facts().get("choices")
    return str(choices.get("preset")) if isinstance(choices, dict) else None


def _python(arguments: dict[str, Any]) -> str:
    return repr(arguments)
