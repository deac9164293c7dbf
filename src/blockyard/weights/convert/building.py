"""A model of ours for a library's config, with or without data of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from blockyard.config.build import Components, context
from blockyard.config.check import check
from blockyard.config.compose import Composed, compose
from blockyard.contracts import Context
from blockyard.errors import UserError
from blockyard.ops.meta import without_compiler
from blockyard.weights.convert.converter import Foreign


def composed(preset: str, foreign: Foreign, overrides: Sequence[str]) -> Composed:
    """The config of a run: the preset, what the library's config says, and overrides of the user's.

    Raises UserError with every problem.
    """
    composition = compose([f"preset={preset}", "logger=none", *foreign.overrides, *overrides])
    issues = check(composition, training=False)
    if issues:
        raise UserError("the import cannot be a run: " + "; ".join(map(str, issues)))
    return composition


def architecture(preset: str, foreign: Foreign) -> dict[str, Any]:
    """The config of the model alone, whose data and tokenizer stand for nothing. Raises UserError."""
    composition = compose([f"preset={preset}", "logger=none", *foreign.overrides])
    if composition.issues:
        raise UserError("; ".join(map(str, composition.issues)))
    return composition.config


def context_of(components: Components, foreign: Foreign) -> Context:
    """The Context that a library's config stands for. Raises UserError where our parts refuse its sizes."""
    parts = (components.tokenizer, components.source_tokenizer, components.objective, components.architecture)
    try:
        ctx = context(foreign.data, *parts)
    except ValueError as error:
        raise UserError(f"the library's sizes are not ours: {error}") from error
    tokens = ctx.tokens if foreign.vocabulary is None else replace(ctx.tokens, vocabulary=foreign.vocabulary)
    return replace(ctx, tokens=tokens, outputs=foreign.outputs or ctx.outputs)


def build(components: Components, ctx: Context, *, device: str = "meta") -> nn.Module:
    """The model of a context, without initial weights. Raises UserError where our parts refuse its sizes."""
    try:
        with without_compiler(), torch.device(device):
            return components.architecture.build(ctx, components.parts).eval()
    except ValueError as error:
        raise UserError(f"the library's sizes are not ours: {error}") from error
