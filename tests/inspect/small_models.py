"""Small models in float64, with random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from blockyard.config import build
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.inspect.samples import Sample
from tests.support.tiny import TEXT, TINY

_SHARED = tuple(override for override in TINY if "token_mixer" not in override and "depth" not in override)
IMAGE = (*_SHARED, "model.depth=2", "tokenizer.size=2")


def build_model(outputs: Path, *overrides: str) -> tuple[nn.Module, list[Sample]]:
    """A model in float64 with trained-looking weights, and two samples."""
    base = (*TEXT, "tokenizer=byte") if "model=decoder" in overrides else IMAGE
    composed = compose([*base, *overrides, f"outputs={outputs}"])
    problems = check(composed)
    assert not problems, [str(problem) for problem in problems]
    components = build.Components(composed.config)
    splits = components.data.load(components.tokenizer)
    model = components.model(0).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight") or "finish" in name:
                weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    samples = []
    for index in (0, 5):
        batch = components.objective.prepare(splits.validation.batch(torch.tensor([index]), None))
        if batch.inputs.is_floating_point():
            batch.inputs = batch.inputs.double()
        samples.append(Sample(batch, index))
    return model, samples
