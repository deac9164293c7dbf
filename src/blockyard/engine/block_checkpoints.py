"""Gradient checkpointing: the inside of a block is not kept for the backward pass but computed again in it.

Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (arXiv 1604.06174), section 4.1
Reference: torch.utils.checkpoint.checkpoint(use_reentrant=False)

Gradients have the same bits: random numbers are drawn again, and statistics that a forward pass updates, such as those
of batch norms, are put back after the second one.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from blockyard.contracts import iter_blocks


def checkpoint_blocks(model: nn.Module) -> None:
    """Make every block of a model compute its inside again in the backward pass."""
    for block in iter_blocks(model):
        # A bound method, so that a copy of the model computes with its own weights.
        block.forward = types.MethodType(_forward, block)  # type: ignore[method-assign]


def _forward(block: nn.Module, *arguments: Any, **settings: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*arguments, **settings)
    kept = {"context_fn": partial(_contexts, block)} if next(block.buffers(), None) is not None else {}
    return checkpoint(forward, *arguments, use_reentrant=False, **kept, **settings)


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _buffers_kept(block)


@contextmanager
def _buffers_kept(block: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
