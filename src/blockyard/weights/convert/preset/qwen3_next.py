"""Qwen3-Next: Gated DeltaNet in three of four layers, gated attention in the others, experts beside a gated shared one.

Its maps hold queries, keys, values and gates head by head. Modules for several tokens ahead are not read.

Reference: transformers Qwen3NextForCausalLM
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blockyard.config.override_grammar import to_override
from blockyard.errors import UserError
from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.rotary import FULL
from blockyard.weights.convert.rules import KINDS, ConversionRule, mapped, modules, permuted, same
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

LINEAR = "linear_attention"  # in `llama.layer_types`
EVERY = 4  # of so many layers one has attention, if a config does not name them
SHARE = 0.25  # of the channels rotate, if a config does not say another share
MIXER, LIBRARY_LAYER = "blocks.{n}.token_mixer", "model.layers.{n}"
MLP = "model.layers.{n}.mlp"
# The options of the delta rule: the keys, and the defaults of the class.
DELTA = {
    "num_heads": ("linear_num_value_heads", 32),
    "num_key_heads": ("linear_num_key_heads", 16),
    "key_dim": ("linear_key_head_dim", 128),
    "value_dim": ("linear_value_head_dim", 128),
    "conv": ("linear_conv_kernel_dim", 4),
}
# Numbers of heads that are written null, and an option of speed.
UNCOMPARED = frozenset(f"token_mixer.{each}" for each in ("num_heads", "num_key_heads", "chunk"))


def _read_layers(settings: LibrarySettings, values: keys.Values) -> list[llama.LayerFacts]:
    """Read the layers with a delta rule and the layers without experts."""
    every = settings.integer("full_attention_interval", EVERY, is_dimension=False)
    types = llama.layer_types(settings, values, lambda layer: (layer + 1) % every != 0, LINEAR)
    delta = {option: settings.integer(*key) for option, key in DELTA.items()}
    key_heads, heads = delta["num_key_heads"], delta["num_heads"]
    if heads % key_heads:
        raise UserError(f"{settings.name}: linear_num_key_heads={key_heads} does not divide {heads}, those of values")
    values |= {"linear": types, "delta": delta}
    options = delta | {"eps": values["norm.eps"]}
    recurrent = (
        *("token_mixer=delta_rule", "position=none"),
        *(to_override(f"token_mixer.{option}", value) for option, value in options.items()),
    )
    facts = llama.read_dense_layers(settings, values)
    return [
        replace(layer, recurrent=recurrent if is_linear else ()) for layer, is_linear in zip(facts, types, strict=True)
    ]


def _written_layers(run: Trained) -> LibraryConfig:
    recurrent = ["output_gate" in nodes["token_mixer"] for nodes in run.layers]
    if True not in recurrent:
        raise UserError("no layer has token_mixer=delta_rule")
    delta = run.layers[recurrent.index(True)]["token_mixer"]
    width, heads = run.ctx.dim // run.ctx.heads, delta.get("num_heads") or run.ctx.heads
    usual = {"num_heads": heads, "num_key_heads": heads, "key_dim": width, "value_dim": width, "conv": 4}
    config = {name: delta.get(option) or usual[option] for option, (name, _) in DELTA.items()}
    return config | {"layer_types": [LINEAR if each else FULL for each in recurrent]}


def _read_shared(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read the number of shared experts, which the library stores as one wide expert."""
    hidden = values["expert_hidden"]
    values["shared"], rest = divmod(settings.integer("shared_expert_intermediate_size", 512), hidden)
    if rest:
        settings.problems.append(f"shared_expert_intermediate_size: expected a multiple of {hidden}, that of an expert")
    return [f"channel_mixer.shared={values['shared']}", "channel_mixer.shared_gate=true"]


def _written_experts(run: Trained) -> LibraryConfig:
    config = llama.written_experts(run, "num_experts")
    routed = next(nodes["channel_mixer"] for nodes in run.layers if "count" in nodes["channel_mixer"])
    return config | {"shared_expert_intermediate_size": config["moe_intermediate_size"] * (routed.get("shared") or 1)}


def _rules(values: keys.Values) -> list[ConversionRule]:
    rules = [*modules(llama.NORMS), *llama.table_rules(values)]
    delta_sizes = (values["delta"][option] for option in ("num_key_heads", "num_heads", "key_dim", "value_dim"))
    attention, delta = _attention_rules(values), _delta_rules(*delta_sizes)
    routed = [
        *llama.expert_rules(values["experts"]),
        *llama.shared_expert_rules(values["shared"], values["expert_hidden"], f"{MLP}.shared_expert"),
        same("blocks.{n}.channel_mixer.shared_gate.weight", f"{MLP}.shared_expert_gate.weight"),
    ]
    for layer, (is_linear, is_dense) in enumerate(zip(values["linear"], values["dense"], strict=True)):
        of_layer = [*(delta if is_linear else attention), *(llama.gated_rules() if is_dense else routed)]
        rules += [rule.named(n=layer) for rule in of_layer]
    return rules


def _attention_rules(values: keys.Values) -> list[ConversionRule]:
    """Return the rules of attention. The library stores queries and gates in one map, and gains of norms minus one.

    Our map has the queries of all heads, then keys and values, then the gates.
    """
    library_mixer, heads, width = f"{LIBRARY_LAYER}.self_attn", values["model.heads"], values["head_dim"]
    both, one = 2 * heads * width, values["kv_heads"] * width
    queries, gates = (outputs.flatten() for outputs in torch.arange(both).view(heads, 2, width).unbind(1))
    to_model, to_library = permuted(torch.cat([queries, both + torch.arange(2 * one), gates]))

    def join(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [to_model(torch.cat([*parts]))]

    def apart(model_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return to_library(model_tensors[0]).split([both, one, one])

    rules = modules({f"{MIXER}.proj_out": f"{library_mixer}.o_proj"})
    for kind in KINDS:
        library_names = tuple(f"{library_mixer}.{part}_proj.{kind}" for part in "qkv")
        rules.append(ConversionRule((f"{MIXER}.proj_in.{kind}",), library_names, join, apart))
    for model_name, library_name in llama.QK_NORMS.items():
        rules.append(mapped(f"{model_name}.weight", f"{library_name}.weight", lambda x: 1 + x, lambda x: x - 1))
    return rules


def _delta_rules(key_heads: int, heads: int, key: int, value: int) -> list[ConversionRule]:
    """Return the rules of Gated DeltaNet. Its maps go by heads of keys, each with its heads of values."""
    library_mixer, readers = f"{LIBRARY_LAYER}.linear_attn", heads // key_heads
    widths = [key, key, readers * value, readers * value]
    names = {"decay.rate": "A_log", "decay.step": "dt_bias", "norm.weight": "norm.weight"}
    return [
        *(same(f"{MIXER}.{name}", f"{library_mixer}.{library_name}") for name, library_name in names.items()),
        *modules({f"{MIXER}.proj_out": f"{library_mixer}.out_proj"}, ["weight"]),
        mapped(f"{MIXER}.conv.weight", f"{library_mixer}.conv1d.weight", lambda x: x[:, 0], lambda x: x[:, None]),
        _by_heads(f"{MIXER}.proj_in.weight", f"{library_mixer}.in_proj_qkvz.weight", key_heads, widths),
        _by_heads(f"{MIXER}.proj_rates.weight", f"{library_mixer}.in_proj_ba.weight", key_heads, [readers, readers]),
    ]


def _by_heads(model_name: str, library_name: str, heads: int, widths: Sequence[int]) -> ConversionRule:
    """Return the rule of several maps in one weight: head by head in the library, one map after the other in ours.

    widths: of each map in a head
    """
    outputs = torch.arange(heads * sum(widths)).view(heads, -1)
    order = torch.cat([part.flatten() for part in outputs.split(list(widths), 1)])
    return mapped(model_name, library_name, *permuted(order))


CONVERTER = llama.decoder(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    [
        *llama.sizes(),
        *(llama.positions(share=SHARE), llama.normed_eps(1e-6), keys.tied(False)),
        keys.option("token_mixer.qk_norm", "head"),
        keys.option("token_mixer.gate", "channel"),
        llama.ATTENTION_BIAS,
        llama.experts("num_experts", "moe_intermediate_size", normalise=True, write=_written_experts),
        keys.Key(_read_shared),
        llama.layers(_read_layers, _written_layers),
    ],
    _rules,
    skipped=("mtp.",),
    uncompared=llama.UNCOMPARED_OF_EXPERTS | UNCOMPARED,
)
