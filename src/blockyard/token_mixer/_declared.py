"""What a mixer does not declare, it refuses: at construction and at every call."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits


def check_context(mixer: TokenMixer, ctx: Context) -> None:
    """Raises ValueError where `ctx` asks for what the mixer, with its options, does not offer."""
    check_traits(type(mixer).__name__, mixer.traits, ctx)


def check_traits(name: str, traits: Traits, ctx: Context) -> None:
    """The same of a mixer known by its traits."""
    found = []
    if ctx.causal and not traits.causal:
        found.append("cannot keep the future from past outputs: use model=encoder or a causal token mixer")
    if not ctx.causal and not traits.bidirectional:
        found.append("only looks back: use model=decoder or a bidirectional token mixer")
    if ctx.tokens.axes not in traits.axes:
        legal = ", ".join(map(str, sorted(traits.axes)))
        found.append(f"works on {legal} coordinate axes, the tokens have {ctx.tokens.axes}: use another tokenizer")
    if ctx.num_prefix and not traits.prefix:
        found.append(
            f"leaves class and register tokens out, model.prefix has {ctx.num_prefix}: use "
            "model.prefix.class_token=false model.prefix.registers=0"
        )
    if ctx.tokens.variable and not (traits.any_length and traits.padding):
        found.append("cannot take rows of different lengths: use data of one length or another token mixer")
    if ctx.data.packed and not traits.packing:
        found.append("mixes the documents of a packed row: use data without packing or another token mixer")
    if found:
        raise ValueError("; ".join(f"token_mixer {name} {text}" for text in found))


def check_call(mixer: TokenMixer, traits: Traits, seq: Seq, cache: Any, memory: Memory | None) -> None:
    """Raises ValueError where a call brings facts that the mixer would have to ignore."""
    name = f"token_mixer {type(mixer).__name__}"
    if seq.valid is not None and not traits.padding:
        raise ValueError(f"{name} cannot leave padding out; give rows of one length, without lengths")
    if seq.segment is not None and not traits.packing:
        raise ValueError(f"{name} cannot keep segments apart; give one document a row, without segment")
    if memory is not None and not traits.cross:
        raise ValueError(f"{name} cannot look at a memory; use token_mixer=attention for that")
    if cache is not None and not hasattr(mixer, "init_cache"):
        raise ValueError(f"{name} cannot decode from a cache; run it over the whole row instead")
    if seq.features is None and traits.reads_features:
        raise ValueError(f"{name} mixes by features of the raw input, this row has none; use tokenizer=patch")
    if seq.num_prefix and not traits.prefix:
        raise ValueError(f"{name} leaves class and register tokens out; use a model without a prefix")


def check_length(mixer: TokenMixer, length: int, x: Tensor) -> None:
    """Raises ValueError where a row (B, N, C) has another number of tokens than the mixer has weights for."""
    if x.shape[1] != length:
        raise ValueError(
            f"token_mixer {type(mixer).__name__} was built for {length} tokens and got {x.shape[1]}; give inputs of "
            "the size it was trained on or use another token mixer"
        )
