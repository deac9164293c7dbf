"""Tiny models of every architecture, built from factories."""

from __future__ import annotations

from typing import Any

from torch import nn

from blockyard.config import schema
from blockyard.contracts import Context, DataSpec, Parts, TokenSpec
from blockyard.model.encoder_decoder import EncoderDecoder
from blockyard.weight_init import initialise
from tests.support.helpers import DEFAULT_PARTS, TinyEmbedder, blocks, factory, node, stir


def tiny_parts(embedder: Any = TinyEmbedder, **picks: str) -> Parts:
    """Factories of a model's parts; families that are not passed have a default."""
    choices = DEFAULT_PARTS | picks
    return Parts(embedder=embedder, **{family: factory(family, name) for family, name in choices.items()})


def tiny_encoder_decoder(variable: bool = False, **picks: str) -> nn.Module:
    """An encoder-decoder over sequences of 6 and sources of 7 token ids."""
    plan = EncoderDecoder(dim=16, depth=2, encoder_depth=1, heads=4)
    data = DataSpec("text", (6,), variable=variable, source=DataSpec("text", (7,)))
    ctx = plan.context(data, TokenSpec((6,), vocabulary=11, variable=variable), 11)
    return stir(initialise(plan.build(ctx, tiny_parts(**picks)), 0)).double().eval()


def blocks_with_cross() -> list[str]:
    """Blocks that can hold cross-attention beside both mixers."""
    held = [(name, node("block", name)[0]) for name in blocks()]
    return [name for name, block in held if "add_cross" in _members(block) and not block.single]


def _members(block: type) -> set[str]:
    return {name for base in block.__mro__ if base.__name__ != "Block" for name in vars(base) if base is not nn.Module}


def build_tiny(
    name: str,
    residual: str = "add",
    layers: Any = None,
    token_mixer: str = "attention",
    mixing: dict[str, Any] | None = None,
    **options: object,
) -> nn.Module:
    """A model of a choice of `model`, with its initial weights and those of the sizes that are options of it.

    mixing: options of its token mixer
    """
    target = node("model", name)[0]
    sizes = {"dim": 16, "depth": 2, "heads": 4, **options}
    plan = target(**{key: value for key, value in sizes.items() if key in schema.options(target)})
    data = DataSpec("text", (6,), source=DataSpec("text", (7,)) if target.takes_source else None)
    ctx: Context = plan.context(data, TokenSpec((6,), vocabulary=11), 11)
    parts = tiny_parts(position="learned", residual=residual, token_mixer=token_mixer)
    parts = parts._replace(layers=layers, token_mixer=factory("token_mixer", token_mixer, mixing))
    return initialise(plan.build(ctx, parts), 0)
