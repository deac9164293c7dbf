"""Checks that token mixers share: a mixer refuses what its traits do not declare, when built and at every call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from blockyard.contracts import Context, Memory, Seq, TokenMixer, Traits


def check_context(mixer: TokenMixer, ctx: Context) -> None:
    """Raise ValueError if `ctx` requires something that the mixer does not support with its options."""
    if mixer.empty:
        # A block leaves the branch of an empty mixer out. Another layer may mix class and register tokens, which is
        # checked once the model is built.
        ctx = replace(ctx, num_prefix=0)
    check_traits(type(mixer).__name__, mixer.traits, ctx)


def check_decodes(causal: bool) -> None:
    """Raise ValueError for a cache of a bidirectional mixer: its outputs depend on later tokens."""
    if not causal:
        raise ValueError("a bidirectional model cannot decode from a cache; use model=decoder")


def check_one_document(mixer: TokenMixer, seq: Seq, cache: Any) -> None:
    """Raise ValueError for a cache and a packed sequence: a cache holds one document."""
    if cache is not None and seq.segment is not None:
        raise ValueError(f"token_mixer {type(mixer).__name__} decodes one document at a time; leave segment out")


def check_traits(name: str, traits: Traits, ctx: Context) -> None:
    """Raise ValueError if `ctx` requires something that the traits of a mixer of this name do not have."""
    issues = []
    if ctx.causal and not traits.causal:
        issues.append("cannot be causal: use model=encoder or a causal token mixer")
    if not ctx.causal and not traits.bidirectional:
        issues.append("is causal only: use model=decoder or a bidirectional token mixer")
    if ctx.tokens.axes not in traits.axes:
        allowed = ", ".join(map(str, sorted(traits.axes)))
        issues.append(f"supports {allowed} coordinate axes, the tokens have {ctx.tokens.axes}: use another tokenizer")
    if ctx.num_prefix and not traits.prefix:
        issues.append(
            f"does not mix class and register tokens, and model.prefix has {ctx.num_prefix}: use "
            "model.prefix.class_token=false model.prefix.registers=0"
        )
    if ctx.tokens.variable and not (traits.any_length and traits.padding):
        issues.append("does not support sequences of different lengths: use data of one length or another token mixer")
    if ctx.data.packed and not traits.packing:
        issues.append("mixes the documents of a packed sequence: use data without packing or another token mixer")
    if issues:
        raise ValueError("; ".join(f"token_mixer {name} {issue}" for issue in issues))


def check_call(mixer: TokenMixer, traits: Traits, seq: Seq, cache: Any, memory: Memory | None) -> None:
    """Raise ValueError if an argument of a call is something that the mixer would have to ignore."""
    name = f"token_mixer {type(mixer).__name__}"
    if seq.valid is not None and not traits.padding:
        raise ValueError(f"{name} cannot leave padding out; pass sequences of one length, without lengths")
    if seq.segment is not None and not traits.packing:
        raise ValueError(f"{name} cannot keep segments apart; pass one document per sequence, without segment")
    if memory is not None and not traits.cross:
        raise ValueError(f"{name} does not support cross-attention to a memory; use token_mixer=attention")
    if cache is not None and not hasattr(mixer, "init_cache"):
        raise ValueError(f"{name} cannot decode from a cache; run it over the whole sequence instead")
    if seq.features is None and traits.reads_features:
        raise ValueError(f"{name} mixes by features of the raw input and there are none; use tokenizer=patch")
    if seq.pairs is None and traits.reads_pairs:
        raise ValueError(f"{name} mixes by facts of pairs of tokens and there are none; use data of graphs")
    if seq.ids is None and traits.reads_ids:
        raise ValueError(f"{name} looks up token ids and these inputs have none; use value_embedding=none")
    if seq.num_prefix and not traits.prefix:
        raise ValueError(f"{name} does not mix class and register tokens; use a model without a prefix")


def key_heads(ctx: Context, num_kv_heads: int | None) -> int:
    """Return the number of key heads. Raises ValueError unless it divides the number of query heads."""
    kv_heads = ctx.heads if num_kv_heads is None else num_kv_heads
    if kv_heads < 1 or ctx.heads % kv_heads:
        divisors = ", ".join(str(h) for h in range(1, ctx.heads + 1) if ctx.heads % h == 0)
        raise ValueError(
            f"token_mixer.num_kv_heads={num_kv_heads} does not divide model.heads={ctx.heads}; use one of {divisors}"
        )
    return kv_heads


def check_length(mixer: TokenMixer, length: int, x: Tensor) -> None:
    """Raise ValueError unless x (B, N, C) has as many tokens as the mixer has weights for."""
    if x.shape[1] != length:
        raise ValueError(
            f"token_mixer {type(mixer).__name__} was built for {length} tokens and got {x.shape[1]}; pass inputs of "
            "the size it was trained on or use another token mixer"
        )
