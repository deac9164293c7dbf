"""What is measured: a mixer alone, a training step, or the decoding of one token, as a function without arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from blockyard.config.build import Components
from blockyard.contracts import Batch, Inputs

Of = Literal["mixer", "step", "decode"]


@dataclass(frozen=True)
class Subject:
    """What is measured of a model.

    run: does it once; kept: bytes that it keeps between two calls: the cache of a decoder
    """

    model: nn.Module
    run: Callable[[], Any]
    kept: int = 0


def subject(components: Components, of: Of, batch: int, device: str) -> Subject:
    """Returns what `of` names, of a new model. Raises ValueError for a model without a token mixer."""
    model: Any = components.model(0).to(device)
    if not model.mixers or model.mixers[0].empty:
        raise ValueError("the model has no token mixer to measure")
    length, vocabulary = model.ctx.tokens.max_len, model.ctx.tokens.vocabulary
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (batch, length + 1), generator=generator).to(device)
    if of == "mixer":
        return _mixer(model.train(), tokens[:, :length])
    if of == "step":
        return _step(model.train(), components, tokens)
    return _decode(model.eval(), tokens[:, :length])


def _mixer(model: Any, tokens: Tensor) -> Subject:
    """Forward and backward pass of the first block's mixer, with the masks that it needs."""
    with torch.no_grad():
        x, seq = model.embed_tokens(Inputs(tokens))  # (B, N, D)
    mixer = model.mixers[0]
    grad = torch.ones_like(x)

    def run() -> None:
        leaf, facts = x.detach().requires_grad_(), replace(seq, memo={})
        mixer.prepare(leaf, facts)
        mixer(leaf, facts).backward(grad)
        mixer.zero_grad(set_to_none=True)

    return Subject(mixer, run)


def _step(model: Any, components: Components, tokens: Tensor) -> Subject:
    """Forward and backward pass of the model with its loss."""
    batch = components.objective.ready(Batch(tokens))
    if batch.inputs.shape[1] > model.ctx.tokens.max_len:  # an objective that does not shift the tokens by one
        batch = components.objective.ready(Batch(tokens[:, :-1]))

    def run() -> None:
        components.objective.loss(model(batch), batch.target).backward()
        model.zero_grad(set_to_none=True)

    return Subject(model, run)


def _decode(model: Any, tokens: Tensor) -> Subject:
    """The last token after all others: from the cache, or without one the whole sequence."""
    try:
        cache = model.init_cache(len(tokens))
    except ValueError:  # a mixer without a cache
        return Subject(model, torch.inference_mode()(lambda: model(tokens)))
    with torch.inference_mode():
        model(tokens[:, :-2], cache=cache)
        model(tokens[:, -2:-1], cache=cache)  # storage that grows by half of its size is not a step's cost

    @torch.inference_mode()
    def run() -> None:
        model(tokens[:, -1:], cache=cache.snapshot())

    return Subject(model, run, cache.bytes)
