"""Falcon-H1: attention and Mamba-2 side by side in every layer.

Its multipliers are factors on what linear maps give, so they go into our weights; an exported model has multipliers of
one. Where they differ for the table and the head, an imported head is not tied.

Reference: transformers FalconH1ForCausalLM
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blockyard.errors import UserError, quoted
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.declared_sizes import real_number
from blockyard.weights.convert.llama_family import DecoderSizes, shared
from blockyard.weights.convert.preset.mamba2 import INFINITE, mixer_rules
from blockyard.weights.convert.rules import BothWays, ConversionRule, modules, same, scaled, stacked, table_and_head
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

ATTENTION, MAMBA = (f"blocks.{{n}}.token_mixer.members.{name}" for name in ("attention", "mamba2"))
THEIRS = "model.layers.{n}"
NORMS = {
    "blocks.{n}.token_norm": f"{THEIRS}.input_layernorm",
    "blocks.{n}.channel_norm": f"{THEIRS}.pre_ff_layernorm",
}
PLAIN_BIASES = ("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias")
ONES = ("lm_head", "embedding", "key", "attention_out", "attention_in", "ssm_in", "ssm_out")
MEMBER = "token_mixer.members"


def read(settings: LibrarySettings) -> Foreign:
    """Falcon-H1's config as overrides."""
    sizes = DecoderSizes(settings)
    sizes.attention = [each.replace("token_mixer.", f"{MEMBER}.attention.") for each in sizes.attention]
    for key in PLAIN_BIASES:
        settings.must(key, False)
    settings.must("mamba_conv_bias", True)
    settings.must("hidden_act", "silu", "swish")
    settings.must("time_step_limit", *INFINITE)
    settings.must("attn_layer_indices", None)
    settings.must("mamba_use_mlp", True)
    for key in ("num_logits_to_keep", "mlp_expansion_factor"):
        settings.take(key, None)  # which the class does not read
    factors = {name: settings.number(f"{name}_multiplier", 1.0) for name in ONES}
    gate, down = _numbers(settings, "mlp_multipliers", 2)
    of_parts = [each * factors["ssm_in"] for each in _numbers(settings, "ssm_multipliers", 5)]
    if not all((*factors.values(), gate, down, *of_parts)):
        raise UserError(f"{settings.name}: a multiplier is 0")
    heads, inner = settings.integer("mamba_n_heads", 128), _inner(settings, sizes.dim)
    width = inner // heads
    if settings.take("mamba_d_head", "auto") not in ("auto", width) or inner % heads:
        raise UserError(f"{settings.name}: mamba_d_head: expected {inner} / {heads}, the channels of a head")
    groups, state = settings.integer("mamba_n_groups", 1), settings.integer("mamba_d_state", 256)
    before = settings.flag("mamba_norm_before_gate", True)
    norm = ("before_gate" if before else "after_gate") if settings.flag("mamba_rms_norm", False) else "none"
    eps, mamba = sizes.eps(1e-5), f"{MEMBER}.mamba2"
    is_tied = settings.is_tied(False)
    one_table = is_tied and factors["embedding"] == factors["lm_head"] == 1.0
    overrides = [
        *(*sizes.gated(), eps, f"{mamba}.{eps.partition('.')[2]}", f"{mamba}.norm={norm}"),
        f"{mamba}.num_heads={'null' if heads == sizes.heads else heads}",
        f"{mamba}.value_dim={'null' if width == 2 * (sizes.dim // sizes.heads) else width}",
        *(f"{mamba}.groups={groups}", f"{mamba}.state={state}", f"{mamba}.conv={settings.integer('mamba_d_conv', 4)}"),
        f"{mamba}.chunk={settings.integer('mamba_chunk_size', 256, is_dimension=False)}",
        f"head.tied={boolean(one_table)}",
    ]
    keys = sizes.kv_heads * sizes.head_dim
    of_inputs = [factors["attention_in"] * each for each in (1.0, factors["key"], 1.0)]
    names = [f"{THEIRS}.self_attn.{each}_proj.weight" for each in "qkv"]
    mlp = [f"{THEIRS}.feed_forward.{each}_proj.weight" for each in ("gate", "up")]
    widths = [sizes.heads * sizes.head_dim, keys, keys]
    rules = [
        stacked(f"{ATTENTION}.proj_in.weight", names, widths, [_times(each) for each in of_inputs]),
        scaled(f"{ATTENTION}.proj_out.weight", f"{THEIRS}.self_attn.o_proj.weight", factors["attention_out"]),
        *_mamba_rules([inner, inner, groups * state, groups * state, heads], of_parts, factors["ssm_out"]),
        stacked("blocks.{n}.channel_mixer.proj_in.weight", mlp, [sizes.hidden] * 2, [_times(gate), _times(1.0)]),
        scaled("blocks.{n}.channel_mixer.proj_out.weight", f"{THEIRS}.feed_forward.down_proj.weight", down),
        *modules(NORMS),
        same("final_norm.weight", "model.final_layernorm.weight"),
        *_table_rules(is_tied, one_table, factors["embedding"], factors["lm_head"]),
    ]
    return sizes.foreign(overrides, rules)


def _numbers(settings: LibrarySettings, key: str, count: int) -> list[float]:
    """A list of multipliers, all one where there is none. Raises UserError for anything else."""
    value = settings.take(key, None)
    value = [1.0] * count if value is None else value
    if not isinstance(value, list | tuple) or len(value) != count:
        raise UserError(f"{settings.name}: {key}={quoted(value)} is not a list of {count} numbers")
    return [real_number(settings.name, key, each) for each in value]


def _inner(settings: LibrarySettings, dim: int) -> int:
    """The inner channels of Mamba-2."""
    multiple = settings.integer("mamba_expand", 2, is_dimension=False)
    return settings.optional_integer("mamba_d_ssm") or multiple * dim


def _times(factor: float) -> BothWays:
    """A factor, and its inverse."""
    return (lambda x: x * factor), (lambda x: x / factor)


def _mamba_rules(widths: Sequence[int], factors: Sequence[float], out: float) -> list[ConversionRule]:
    """Of Mamba-2. widths, factors: of z, x, B, C and the steps in its first map; out: the factor of its last."""
    theirs = f"{THEIRS}.mamba"
    rows = torch.cat([torch.full((width, 1), factor) for width, factor in zip(widths, factors, strict=True)])

    def apart(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return (parts[0] * rows).split([sum(widths[:-1]), widths[-1]])

    def join(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([*own]) / rows]

    return [
        *(*mixer_rules(MAMBA, theirs), same(f"{MAMBA}.decay.step", f"{theirs}.dt_bias")),
        ConversionRule(
            (f"{MAMBA}.proj_in.weight", f"{MAMBA}.proj_steps.weight"), (f"{theirs}.in_proj.weight",), apart, join
        ),
        scaled(f"{MAMBA}.proj_out.weight", f"{theirs}.out_proj.weight", out),
    ]


def _table_rules(is_tied: bool, one_table: bool, table: float, head: float) -> list[ConversionRule]:
    """Of the table and the head, which have a factor each."""
    ours, theirs, own_head = (
        ("embedder.symbols.weight", "head.proj.weight"),
        "model.embed_tokens.weight",
        "lm_head.weight",
    )
    if one_table:
        return table_and_head(theirs, own_head, is_tied=True)
    if not is_tied:
        return [scaled(ours[0], theirs, table), scaled(ours[1], own_head, head)]
    both = ConversionRule(ours, (theirs,), lambda x: [x[0] * table, x[0] * head], lambda own: [own[0] / table])
    return [replace(both, aliases=(own_head,))]


def write(run: Trained) -> LibraryConfig:
    """Falcon-H1's config of a model of ours."""
    attention, mamba = (run.option(f"{MEMBER}.{name}") or {} for name in ("attention", "mamba2"))
    heads, width = mamba.get("num_heads") or run.ctx.heads, mamba.get("value_dim") or 2 * run.ctx.dim // run.ctx.heads
    norm = mamba.get("norm") or "after_gate"
    return shared(run) | {
        "num_key_value_heads": attention.get("num_kv_heads") or run.ctx.heads,
        "head_dim": attention.get("key_dim") or run.ctx.dim // run.ctx.heads,
        "mamba_d_ssm": heads * width,
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_n_groups": mamba.get("groups") or 1,
        "mamba_d_state": mamba.get("state") or 64,
        "mamba_d_conv": mamba.get("conv") or 4,
        "mamba_chunk_size": mamba.get("chunk") or 32,
        "mamba_rms_norm": norm != "none",
        "mamba_norm_before_gate": norm != "after_gate",
        "mamba_conv_bias": True,
        **dict.fromkeys(PLAIN_BIASES, False),
    }


CONVERTER = Converter("falcon_h1", "transformers", "FalconH1ForCausalLM", read, write, model_type="falcon_h1")
