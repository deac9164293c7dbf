"""Contexts in which a model is run to look inside it, so that nothing of its training changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from blockyard.contracts import Block


@runtime_checkable
class Fuses(Protocol):
    """A block that computes the projections of both mixers in one matmul while `fused` is on."""

    fused: bool


@contextmanager
def observed(model: nn.Module) -> Iterator[None]:
    """Run the model in evaluation mode, eagerly and without gradients inside this context."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        model.train(training)


@contextmanager
def unfused(model: nn.Module) -> Iterator[None]:
    """Run fused blocks unfused inside this context: the same result, with every mixer called as a module."""
    fused = []
    for block in model.modules():
        if isinstance(block, Block) and isinstance(block, Fuses) and block.fused:
            block.fused = False
            fused.append(block)
    try:
        yield
    finally:
        for block in fused:
            block.fused = True
