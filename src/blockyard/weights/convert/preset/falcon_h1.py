"""Falcon-H1: attention and Mamba-2 side by side in every layer.

Its multipliers are factors on what linear maps give, so they go into our weights; an exported model has multipliers of
one. Where they differ for the table and the head, an imported head is not tied.

Reference: transformers FalconH1ForCausalLM
"""

from __future__ import annotations

from collections.abc import Sequence

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

ATTENTION = "blocks.{n}.token_mixer.members.attention"
MAMBA = "blocks.{n}.token_mixer.members.mamba2"
LIBRARY_LAYER = "model.layers.{n}"
NORMS = {
    "blocks.{n}.token_norm": f"{LIBRARY_LAYER}.input_layernorm",
    "blocks.{n}.channel_norm": f"{LIBRARY_LAYER}.pre_ff_layernorm",
}
ONES = ("lm_head", "embedding", "key", "attention_out", "attention_in", "ssm_in", "ssm_out")
MEMBER = "token_mixer.members"
MIXER = f"{MEMBER}.mamba2"


def _read_factors(settings: LibrarySettings, values: keys.Values) -> None:
    """Read the multipliers. Raises UserError for one that is 0."""
    factors = {name: settings.number(f"{name}_multiplier", 1.0) for name in ONES}
    gate, down = _numbers(settings, "mlp_multipliers", 2)
    of_parts = [factor * factors["ssm_in"] for factor in _numbers(settings, "ssm_multipliers", 5)]
    if not all((*factors.values(), gate, down, *of_parts)):
        raise UserError(f"{settings.name}: a multiplier is 0")
    values |= {"factors": factors, "gate": gate, "down": down, "parts": of_parts}


def _read_mamba(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read the heads and the norm of Mamba-2. Our options are null for their usual values."""
    heads = settings.integer("mamba_n_heads", 128)
    multiple = settings.integer("mamba_expand", 2, is_dimension=False)
    inner = settings.optional_integer("mamba_d_ssm") or multiple * values["model.dim"]
    width = inner // heads
    if settings.take("mamba_d_head", "auto") not in ("auto", width) or inner % heads:
        raise UserError(f"{settings.name}: mamba_d_head: expected {inner} / {heads}, the channels of a head")
    norm = "before_gate" if settings.flag("mamba_norm_before_gate", True) else "after_gate"
    if not settings.flag("mamba_rms_norm", False):
        norm = "none"
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
    heads = mamba.get("num_heads") or run.ctx.heads
    width = mamba.get("value_dim") or 2 * run.ctx.dim // run.ctx.heads
    norm = mamba.get("norm") or "after_gate"
    return {
        "mamba_d_ssm": heads * width,
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_rms_norm": norm != "none",
        "mamba_norm_before_gate": norm != "after_gate",
    }


def _read_tied(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read whether table and head are one weight. Our model has two if their factors differ."""
    is_tied, factors = settings.is_tied(False), values["factors"]
    one_table = is_tied and factors["embedding"] == factors["lm_head"] == 1.0
    values |= {"is_tied": is_tied, "one_table": one_table}
    return [to_override("head.tied", one_table)]


def _rules(values: keys.Values) -> list[ConversionRule]:
    factors, gate, inner = values["factors"], values["gate"], values["inner"]
    of_inputs = [factors["attention_in"], factors["attention_in"] * factors["key"], factors["attention_in"]]
    names = [f"{LIBRARY_LAYER}.self_attn.{part}_proj.weight" for part in "qkv"]
    mlp = f"{LIBRARY_LAYER}.feed_forward"
    width_of_keys = values["kv_heads"] * values["head_dim"]
    widths = [values["model.heads"] * values["head_dim"], width_of_keys, width_of_keys]
    state = values[f"{MIXER}.groups"] * values[f"{MIXER}.state"]
    of_mamba = [inner, inner, state, state, values["mamba_heads"]]
    return [
        stacked(f"{ATTENTION}.proj_in.weight", names, [_times(factor) for factor in of_inputs], widths),
        scaled(f"{ATTENTION}.proj_out.weight", f"{LIBRARY_LAYER}.self_attn.o_proj.weight", factors["attention_out"]),
        *_mamba_rules(of_mamba, values["parts"], factors["ssm_out"]),
        stacked(
            "blocks.{n}.channel_mixer.proj_in.weight",
            [f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"],
            [_times(gate), _times(1.0)],
        ),
        scaled("blocks.{n}.channel_mixer.proj_out.weight", f"{mlp}.down_proj.weight", values["down"]),
        *modules(NORMS),
        same("final_norm.weight", "model.final_layernorm.weight"),
        *_table_rules(values["is_tied"], values["one_table"], factors["embedding"], factors["lm_head"]),
    ]


def _numbers(settings: LibrarySettings, key: str, count: int) -> list[float]:
    """Return a list of multipliers, each 1 if the config has none. Raises UserError for anything else."""
    value = settings.take(key, None)
    value = [1.0] * count if value is None else value
    if not isinstance(value, list | tuple) or len(value) != count:
        raise UserError(f"{settings.name}: {key}={quoted(value)} is not a list of {count} numbers")
    return [real_number(settings.name, key, multiplier) for multiplier in value]


def _times(factor: float) -> BothWays:
    """Return the map that multiplies by a factor, and its inverse."""
    return (lambda x: x * factor), (lambda x: x / factor)


def _mamba_rules(widths: Sequence[int], factors: Sequence[float], out: float) -> list[ConversionRule]:
    """Return the rules of Mamba-2.

    widths, factors: of z, x, B, C and the steps in its first map; out: the factor of its last map
    """
    library_name = f"{LIBRARY_LAYER}.mamba"
    rows = torch.cat([torch.full((width, 1), factor) for width, factor in zip(widths, factors, strict=True)])

    def apart(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return (parts[0] * rows).split([sum(widths[:-1]), widths[-1]])

    def join(model_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([*model_tensors]) / rows]

    return [
        *(*mixer_rules(MAMBA, library_name), same(f"{MAMBA}.decay.step", f"{library_name}.dt_bias")),
        ConversionRule(
            (f"{MAMBA}.proj_in.weight", f"{MAMBA}.proj_steps.weight"), (f"{library_name}.in_proj.weight",), apart, join
        ),
        scaled(f"{MAMBA}.proj_out.weight", f"{library_name}.out_proj.weight", out),
    ]


def _table_rules(is_tied: bool, one_table: bool, table: float, head: float) -> list[ConversionRule]:
    """Return the rules of the table and the head, each with its factor."""
    model_names = ("embedder.symbols.weight", "head.proj.weight")
    library_table, library_head = "model.embed_tokens.weight", "lm_head.weight"
    if one_table:
        return table_and_head(library_table, library_head, is_tied=True)
    if not is_tied:
        return [scaled(model_names[0], library_table, table), scaled(model_names[1], library_head, head)]

    def apart(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [parts[0] * table, parts[0] * head]

    def join(model_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [model_tensors[0] / table]

    return [ConversionRule(model_names, (library_table,), apart, join, aliases=(library_head,))]


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
