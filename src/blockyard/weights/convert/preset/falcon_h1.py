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

from blockyard.config.override_grammar import to_override
from blockyard.errors import UserError, quoted
from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.declared_sizes import real_number
from blockyard.weights.convert.preset.mamba2 import INFINITE, mixer_rules
from blockyard.weights.convert.rules import BothWays, ConversionRule, modules, same, scaled, stacked, table_and_head
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

ATTENTION, MAMBA = (f"blocks.{{n}}.token_mixer.members.{name}" for name in ("attention", "mamba2"))
THEIRS = "model.layers.{n}"
NORMS = {
    "blocks.{n}.token_norm": f"{THEIRS}.input_layernorm",
    "blocks.{n}.channel_norm": f"{THEIRS}.pre_ff_layernorm",
}
ONES = ("lm_head", "embedding", "key", "attention_out", "attention_in", "ssm_in", "ssm_out")
MEMBER = "token_mixer.members"


MIXER = f"{MEMBER}.mamba2"


def _read_factors(settings: LibrarySettings, values: keys.Values) -> None:
    """Read the multipliers. Raises UserError for one that is 0."""
    factors = {name: settings.number(f"{name}_multiplier", 1.0) for name in ONES}
    gate, down = _numbers(settings, "mlp_multipliers", 2)
    of_parts = [each * factors["ssm_in"] for each in _numbers(settings, "ssm_multipliers", 5)]
    if not all((*factors.values(), gate, down, *of_parts)):
        raise UserError(f"{settings.name}: a multiplier is 0")
    values |= {"factors": factors, "gate": gate, "down": down, "parts": of_parts}


def _read_mamba(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read the heads and the norm of Mamba-2, whose usual values ours has as null."""
    heads, inner = settings.integer("mamba_n_heads", 128), _inner(settings, values["model.dim"])
    width = inner // heads
    if settings.take("mamba_d_head", "auto") not in ("auto", width) or inner % heads:
        raise UserError(f"{settings.name}: mamba_d_head: expected {inner} / {heads}, the channels of a head")
    before = settings.flag("mamba_norm_before_gate", True)
    norm = ("before_gate" if before else "after_gate") if settings.flag("mamba_rms_norm", False) else "none"
    values |= {"inner": inner, "mamba_heads": heads}
    usual = 2 * (values["model.dim"] // values["model.heads"])
    options = {
        "norm": norm,
        "num_heads": None if heads == values["model.heads"] else heads,
        "value_dim": None if width == usual else width,
    }
    return [to_override(f"{MIXER}.{option}", value) for option, value in options.items()]


def _written_mamba(run: Trained) -> LibraryConfig:
    mamba = run.option(MIXER) or {}
    heads, width = (
        mamba.get("num_heads") or run.ctx.heads,
        mamba.get("value_dim") or 2 * run.ctx.dim // run.ctx.heads,
    )
    norm = mamba.get("norm") or "after_gate"
    return {
        "mamba_d_ssm": heads * width,
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_rms_norm": norm != "none",
        "mamba_norm_before_gate": norm != "after_gate",
    }


def _read_tied(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read whether there is one table: where its factors differ for the table and the head, ours are two."""
    is_tied, factors = settings.is_tied(False), values["factors"]
    one_table = is_tied and factors["embedding"] == factors["lm_head"] == 1.0
    values |= {"is_tied": is_tied, "one_table": one_table}
    return [to_override("head.tied", one_table)]


def _rules(values: keys.Values) -> list[ConversionRule]:
    factors, gate, inner = values["factors"], values["gate"], values["inner"]
    of_inputs = [factors["attention_in"] * each for each in (1.0, factors["key"], 1.0)]
    names = [f"{THEIRS}.self_attn.{each}_proj.weight" for each in "qkv"]
    mlp = [f"{THEIRS}.feed_forward.{each}_proj.weight" for each in ("gate", "up")]
    own_keys = values["kv_heads"] * values["head_dim"]
    widths = [values["model.heads"] * values["head_dim"], own_keys, own_keys]
    state = values[f"{MIXER}.groups"] * values[f"{MIXER}.state"]
    of_mamba = [inner, inner, state, state, values["mamba_heads"]]
    return [
        stacked(f"{ATTENTION}.proj_in.weight", names, [_times(each) for each in of_inputs], widths),
        scaled(f"{ATTENTION}.proj_out.weight", f"{THEIRS}.self_attn.o_proj.weight", factors["attention_out"]),
        *_mamba_rules(of_mamba, values["parts"], factors["ssm_out"]),
        stacked("blocks.{n}.channel_mixer.proj_in.weight", mlp, [_times(gate), _times(1.0)]),
        scaled("blocks.{n}.channel_mixer.proj_out.weight", f"{THEIRS}.feed_forward.down_proj.weight", values["down"]),
        *modules(NORMS),
        same("final_norm.weight", "model.final_layernorm.weight"),
        *_table_rules(values["is_tied"], values["one_table"], factors["embedding"], factors["lm_head"]),
    ]


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


CONVERTER = llama.decoder(
    "falcon_h1",
    "FalconH1ForCausalLM",
    [
        *llama.sizes(llama.heads(f"{MEMBER}.attention")),
        *(llama.positions(), llama.GATED, keys.Key(_read_factors)),
        keys.number("rms_norm_eps", f"norm.eps {MIXER}.eps", 1e-5),
        keys.Key(_read_mamba, _written_mamba),
        keys.whole("mamba_n_groups", f"{MIXER}.groups", 1),
        keys.whole("mamba_d_state", f"{MIXER}.state", 256),
        keys.whole("mamba_d_conv", f"{MIXER}.conv", 4),
        keys.whole("mamba_chunk_size", f"{MIXER}.chunk", 256, is_dimension=False),
        keys.Key(_read_tied, lambda run: {"tie_word_embeddings": bool(run.option("head.tied"))}),
        keys.stated("attention_bias", False),
        keys.stated("mlp_bias", False),
        keys.stated("mamba_proj_bias", False),
        keys.stated("projectors_bias", False),
        keys.stated("mamba_conv_bias", True),
        keys.fixed("hidden_act", "silu", "swish"),
        keys.fixed("time_step_limit", *INFINITE),
        keys.fixed("attn_layer_indices", None),
        keys.fixed("mamba_use_mlp", True),
        keys.ignored("num_logits_to_keep mlp_expansion_factor"),  # which the class does not read
    ],
    _rules,
)
