"""Qwen3-Next: Gated DeltaNet in three of four layers, gated attention in the others, experts beside a gated shared one.

Its maps hold queries, keys, values and gates head by head. Modules for several tokens ahead are not read.

Reference: transformers Qwen3NextForCausalLM
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.errors import UserError
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    NORMS,
    QK_NORMS,
    UNCOMPARED_OF_EXPERTS,
    DecoderSizes,
    LayerFacts,
    dense_layers,
    expert_rules,
    experts,
    gated_rules,
    shared,
    shared_expert_rules,
    table_rules,
    written_experts,
)
from blockyard.weights.convert.rotary import FULL
from blockyard.weights.convert.rules import KINDS, ConversionRule, mapped, modules, permuted, same
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

LINEAR = "linear_attention"  # in `layer_types`
EVERY = 4  # layers of which one has attention, where a config does not name them
SHARE = 0.25  # of the channels that rotate, where a config does not say so
OURS, THEIRS = "blocks.{n}.token_mixer", "model.layers.{n}"
MLP = "model.layers.{n}.mlp"


def read(settings: LibrarySettings) -> Foreign:
    """Qwen3-Next's config as overrides."""
    sizes = DecoderSizes(settings, share=SHARE)
    sizes.attention += ["token_mixer.qk_norm=head", "token_mixer.gate=channel"]
    sizes.attention += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    every = settings.integer("full_attention_interval", EVERY, is_dimension=False)
    types = sizes.layer_types([LINEAR if (layer + 1) % every else FULL for layer in range(sizes.depth)], LINEAR)
    key_heads, heads = settings.integer("linear_num_key_heads", 16), settings.integer("linear_num_value_heads", 32)
    key, value = settings.integer("linear_key_head_dim", 128), settings.integer("linear_value_head_dim", 128)
    if heads % key_heads:
        raise UserError(f"{settings.name}: linear_num_key_heads={key_heads} does not divide {heads}, those of values")
    eps = sizes.normed_eps(1e-6)
    recurrent = (
        *("token_mixer=delta_rule", "position=none", f"token_mixer.num_heads={heads}"),
        *(f"token_mixer.num_key_heads={key_heads}", f"token_mixer.key_dim={key}", f"token_mixer.value_dim={value}"),
        *(f"token_mixer.conv={settings.integer('linear_conv_kernel_dim', 4)}", f"token_mixer.{eps.split('.', 1)[1]}"),
    )
    count, hidden = settings.integer("num_experts", is_dimension=False), settings.integer("moe_intermediate_size")
    number, rest = divmod(settings.integer("shared_expert_intermediate_size", 512), hidden)
    if rest:
        settings.problems.append(f"shared_expert_intermediate_size: expected a multiple of {hidden}, that of an expert")
    dense = dense_layers(settings, sizes.depth)
    mixer = ("channel_mixer=glu", *sizes.gated()) if any(dense) else ()
    is_tied = settings.is_tied(False)
    normalise = settings.flag("norm_topk_prob", True)
    overrides = [
        *experts(settings, sizes, count, "moe_intermediate_size", normalise=normalise),
        *(f"channel_mixer.shared={number}", "channel_mixer.shared_gate=true", eps, f"head.tied={boolean(is_tied)}"),
    ]
    rules = [*modules(NORMS), *table_rules(is_tied)]
    attention, delta = _attention_rules(sizes), _delta_rules(key_heads, heads, key, value)
    routed = [
        *(*expert_rules(count, hidden, MLP), *shared_expert_rules(number, hidden, f"{MLP}.shared_expert")),
        same("blocks.{n}.channel_mixer.shared_gate.weight", f"{MLP}.shared_expert_gate.weight"),
    ]
    for layer, (each, is_dense) in enumerate(zip(types, dense, strict=True)):
        of_layer = [*(attention if each == FULL else delta), *(gated_rules(sizes.hidden) if is_dense else routed)]
        rules += [rule.named(n=layer) for rule in of_layer]
    layers = [
        LayerFacts(dense=mixer if is_dense else (), recurrent=recurrent if each == LINEAR else ())
        for each, is_dense in zip(types, dense, strict=True)
    ]
    return sizes.foreign(overrides, rules, layers, ignored=("mtp.",))


def _attention_rules(sizes: DecoderSizes) -> list[ConversionRule]:
    """Of attention, whose queries and gates are one map, and whose norms hold their gains less one.

    Ours has the queries of all heads in front of keys and values, and the gates behind them.
    """
    theirs, width, keys = f"{THEIRS}.self_attn", sizes.head_dim, sizes.kv_heads * sizes.head_dim
    both = 2 * sizes.heads * width
    queries, gates = (each.flatten() for each in torch.arange(both).view(sizes.heads, 2, width).unbind(1))
    to_ours, to_theirs = permuted(torch.cat([queries, both + torch.arange(2 * keys), gates]))

    def join(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [to_ours(torch.cat([*parts]))]

    def apart(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return to_theirs(own[0]).split([both, keys, keys])

    return [
        *(
            ConversionRule(
                (f"{OURS}.proj_in.{kind}",), tuple(f"{theirs}.{each}_proj.{kind}" for each in "qkv"), join, apart
            )
            for kind in KINDS
        ),
        *modules({f"{OURS}.proj_out": f"{theirs}.o_proj"}),
        *(
            mapped(f"{ours}.weight", f"{norm}.weight", lambda x: 1 + x, lambda x: x - 1)
            for ours, norm in QK_NORMS.items()
        ),
    ]


def _delta_rules(key_heads: int, heads: int, key: int, value: int) -> list[ConversionRule]:
    """Of Gated DeltaNet, whose maps go by the heads of keys, each with the heads of values that read it."""
    theirs, each = f"{THEIRS}.linear_attn", heads // key_heads
    widths = [key, key, each * value, each * value]
    names = {"decay.rate": "A_log", "decay.step": "dt_bias", "norm.weight": "norm.weight"}
    return [
        *(same(f"{OURS}.{own}", f"{theirs}.{name}") for own, name in names.items()),
        *modules({f"{OURS}.proj_out": f"{theirs}.out_proj"}, ["weight"]),
        mapped(f"{OURS}.conv.weight", f"{theirs}.conv1d.weight", lambda x: x[:, 0], lambda x: x[:, None]),
        _by_heads(f"{OURS}.proj_in.weight", f"{theirs}.in_proj_qkvz.weight", key_heads, widths),
        _by_heads(f"{OURS}.proj_rates.weight", f"{theirs}.in_proj_ba.weight", key_heads, [each, each]),
    ]


def _by_heads(ours: str, theirs: str, heads: int, widths: Sequence[int]) -> ConversionRule:
    """Theirs has the outputs of several maps head by head, of these widths in each; ours one map after the other."""
    outputs = torch.arange(heads * sum(widths)).view(heads, -1)
    return mapped(ours, theirs, *permuted(torch.cat([part.flatten() for part in outputs.split(list(widths), 1)])))


def write(run: Trained) -> LibraryConfig:
    """Qwen3-Next's config of a model of ours. Raises UserError where no layer has a delta rule, or experts."""
    recurrent = ["output_gate" in nodes["token_mixer"] for nodes in run.layers]
    dense, mixer, of_experts = written_experts(run)
    if True not in recurrent:
        raise UserError("no layer has token_mixer=delta_rule")
    delta = run.layers[recurrent.index(True)]["token_mixer"]
    heads = delta.get("num_heads") or run.ctx.heads
    config = shared(run) | of_experts
    rope = config["rope_parameters"] | {"partial_rotary_factor": float(run.option("position.fraction") or 1.0)}
    return config | {
        "rope_parameters": rope,
        "layer_types": [LINEAR if each else FULL for each in recurrent],
        "linear_num_value_heads": heads,
        "linear_num_key_heads": delta.get("num_key_heads") or heads,
        "linear_key_head_dim": delta.get("key_dim") or run.ctx.dim // run.ctx.heads,
        "linear_value_head_dim": delta.get("value_dim") or run.ctx.dim // run.ctx.heads,
        "linear_conv_kernel_dim": delta.get("conv") or 4,
        "shared_expert_intermediate_size": config["moe_intermediate_size"] * (mixer.get("shared") or 1),
        "num_experts": mixer["count"],
        "mlp_only_layers": dense,
        "decoder_sparse_step": 1,
        "router_aux_loss_coef": mixer["weight"],
        "attention_bias": bool(run.option("token_mixer.bias")),
    }


# Heads and widths that are written null, and what affects speed alone.
UNCOMPARED = frozenset(f"token_mixer.{each}" for each in ("num_heads", "num_key_heads", "chunk"))
CONVERTER = Converter(
    "qwen3_next",
    "transformers",
    "Qwen3NextForCausalLM",
    read,
    write,
    model_type="qwen3_next",
    uncompared=UNCOMPARED_OF_EXPERTS | UNCOMPARED,
)
