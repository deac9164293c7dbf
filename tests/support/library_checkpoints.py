"""Checkpoints of transformers with random weights, and how close an import of one has to predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.whisper.modeling_whisper import sinusoids

from blockyard.contracts import Inputs
from blockyard.runs.load import load
from blockyard.weights.convert.converter import converters
from blockyard.weights.convert.importing import import_weights
from tests.support.helpers import stir
from tests.support.library_models import CASES
from tests.support.tolerances import FLOAT32_STEPS, FLOAT64, double, float32

# What their classes compute in float64 from the first step to the last; the others cast norms or angles to float32.
WHOLLY_DOUBLE = {"gpt2", "imagegpt", "patchtst"}
# Classes with a recurrence in float32: how many sums follow each other, each over 6 tokens. A delta rule solves a
# triangular system of as many rows, in each of three layers.
RECURRENCES = {"qwen3_next": 18}
# What ours has not, or computes.
FIXED = {
    "model.encoder.embed_positions.weight": lambda x: sinusoids(*x.shape),
    "fnet.embeddings.projection.weight": lambda x: torch.eye(len(x)),
    "fnet.embeddings.projection.bias": torch.zeros_like,
}


def preset_of(case: str) -> str:
    """The preset that a case is for."""
    names = [name for name, each in converters().items() if each.library == "transformers"]
    return next(name for name in sorted(names, reverse=True) if case.startswith(name))


def closeness(case: str, expected: Tensor) -> dict[str, float]:
    """How close the predictions of a case have to be."""
    if case in WHOLLY_DOUBLE:
        return FLOAT64
    sums = next((count for name, count in RECURRENCES.items() if case.startswith(name)), None)
    return FLOAT32_STEPS if sums is None else float32(terms=6, layers=sums, size=expected.abs().max().item())


def saved(case: str, folder: Path, config: Any = None) -> nn.Module:
    """The library's model, written by the library. config: another one of the class"""
    spec = CASES[case]
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, spec.name)(spec.config() if config is None else config)
    state = stir(model).eval().state_dict()
    state |= {name: make(state[name]) for name, make in FIXED.items() if name in state}
    model.load_state_dict(state)
    model.save_pretrained(folder)
    return model


def again(case: str, folder: Path) -> nn.Module:
    """The library's model as it reads a folder. Asserts that nothing is missing or left over."""
    model, report = getattr(transformers, CASES[case].name).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    result: nn.Module = model.eval()
    return result


def eager(model: nn.Module) -> nn.Module:
    """The model with experts that compute one after the other: torch's grouped product takes no float64."""
    model.config._experts_implementation = "eager"
    return model


@torch.no_grad()
def predicted(case: str, model: nn.Module) -> Tensor:
    """What the library's model predicts for the inputs of a case, in float64."""
    return CASES[case].call(eager(model.double()), double(CASES[case].inputs()))


@torch.no_grad()
def imported(case: str, folder: Path, to: Path) -> Tensor:
    """What the import of a folder predicts for the inputs of a case, in float64. to: a new folder"""
    result = import_weights(folder, to, overrides=CASES[case].overrides)
    assert result.missing == []
    prediction: Tensor = load(result.folder).model.double()(Inputs(**double(CASES[case].inputs())))
    return prediction
