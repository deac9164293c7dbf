"""Checks that the parts of a model agree with each other, and the arguments of a forward pass."""

from __future__ import annotations

from torch import nn

from blockyard.contracts import Context, Head, Inputs, Position, TokenMixer
from blockyard.model._cache import Cache
from blockyard.model._prefix import Prefix


def check_parts(
    ctx: Context, prefix: Prefix, placed_mixers: list[tuple[Position, list[TokenMixer]]], head: Head
) -> None:
    """Raise ValueError if a part would be ignored or could not work.

    placed_mixers: every position scheme with the token mixers of the blocks that it acts in
    """
    for position, mixers in placed_mixers:
        _check_position(ctx, position, mixers)
    if ctx.num_prefix and all(mixer.empty for _, mixers in placed_mixers for mixer in mixers):
        raise ValueError(
            "token_mixer NoMixing does not mix class and register tokens, or a source in front, and no layer has "
            "another; use token_mixer=attention"
        )
    if prefix.class_token and ctx.causal:
        raise ValueError(
            "model.prefix.class_token=true: the class token is the first, so in a causal model it sees no "
            "other token; use model.prefix.class_token=false"
        )
    if head.needs_class_token and not prefix.class_token:
        raise ValueError(
            f"head {type(head).__name__} reads the class token, and the model has none; use "
            "model.prefix.class_token=true or head=mean_pool"
        )


def _check_position(ctx: Context, position: Position, mixers: list[TokenMixer]) -> None:
    """Raise ValueError if a scheme cannot take the tokens, or has no mixer to act in."""
    name = type(position).__name__
    if ctx.tokens.axes not in position.axes:
        raise ValueError(f"position {name} cannot take {ctx.tokens.axes} coordinate axes; use position=none")
    for hook in sorted(position.acts_on):
        port = position.needs.get(hook)
        # If layers differ (token_mixer=cycle, layers), the scheme acts in the layers that have the port.
        if port is not None and not any(port in mixer.traits.ports for mixer in mixers):
            have = ", ".join(dict.fromkeys(type(mixer).__name__ for mixer in mixers))
            where = f"which token_mixer {have} does not have" if have else "and no layer has this scheme"
            raise ValueError(
                f"position {name} acts on {port}, {where}; "
                "use position=none, a position that is added to tokens, or token_mixer=attention"
            )


def check_only_embeds(ctx: Context, position: Position, why: str) -> None:
    """Raise ValueError if a scheme does anything but `embed`, in a model without blocks over these tokens."""
    if ctx.tokens.axes not in position.axes or position.acts_on - position.before_blocks:
        raise ValueError(
            f"position {type(position).__name__} has nothing to act on: {why}; use position=none or one that is added "
            "to tokens"
        )


def check_call(ctx: Context, prefix: Prefix, inputs: Inputs, cached: bool) -> None:
    """Raise ValueError if the inputs of a forward pass contradict each other."""
    if inputs.segment is not None and prefix and not ctx.causal:
        raise ValueError(
            "packed sequences and model.prefix in a bidirectional model: class and register tokens would carry one "
            "document into another; use one document a sequence, or no prefix"
        )
    if cached and (inputs.lengths is not None or inputs.segment is not None):
        raise ValueError("a cache takes sequences of one length and one document; leave lengths and segment out")


def check_no_source(model: nn.Module, inputs: Inputs) -> None:
    """Raise ValueError if inputs have a source and the model reads none."""
    if inputs.source is not None or inputs.memory is not None:
        raise ValueError(
            f"{type(model).__name__} reads no source, and these inputs have one; use model=encoder_decoder"
        )


def check_no_cache(model: nn.Module, cache: Cache | None) -> None:
    """Raise ValueError if a cache is passed to a model without one."""
    if cache is not None:
        raise ValueError(f"{type(model).__name__} keeps no cache; pass the whole sequence, or use model=decoder")
