"""gpt-oss: experts with biases, sinks, and windows in every second layer.

Gates and values of their experts lie in turns, and all experts in one weight.

Reference: transformers GptOssForCausalLM
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    NORMS,
    UNCOMPARED_OF_EXPERTS,
    DecoderSizes,
    LayerFacts,
    attention_rules,
    experts,
    shared,
    table_rules,
    written_types,
)
from blockyard.weights.convert.rotary import FULL, SLIDING
from blockyard.weights.convert.rules import ConversionRule, modules, same
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

ALPHA = 1.702  # of our activation quick_gelu
OURS, THEIRS = "blocks.{n}.channel_mixer", "model.layers.{n}.mlp"
MEMBER = "channel_mixer.members.glu"
# Of positions, where a config has none.
SCALING = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}


def read(settings: LibrarySettings) -> Foreign:
    """gpt-oss' config as overrides."""
    settings.must("quantization_config", None, why="weights of four bits are not read")
    settings.must("swiglu_alpha", ALPHA)
    no_scaling = settings.take("rope_parameters", None) is None and not settings.mapping("rope_scaling")
    sizes = DecoderSizes(settings, theta=1.5e5, rope=SCALING if no_scaling else None)
    settings.must("experts_per_token", settings.integer("num_experts_per_tok"), why="num_experts_per_tok says so")
    settings.take("initial_context_length", None)  # that of the scaling of positions
    bias, is_tied = settings.flag("attention_bias", True), settings.is_tied(False)
    sizes.attention += [f"token_mixer.bias={boolean(bias)}", "token_mixer.sink=learned"]
    types = sizes.layer_types([FULL if layer % 2 else SLIDING for layer in range(sizes.depth)])
    near = LayerFacts(sizes.window(128))
    count = settings.integer("num_local_experts", is_dimension=False)
    overrides = [
        *experts(settings, sizes, count, "intermediate_size", normalise=True),
        *(f"{MEMBER}.activation=quick_gelu", f"{MEMBER}.limit={settings.number('swiglu_limit', 7.0)!r}"),
        *(sizes.eps(1e-5), f"head.tied={boolean(is_tied)}"),
    ]
    rules = [
        *(*attention_rules(sizes), *modules(NORMS), *table_rules(is_tied), *_expert_rules(count, sizes.hidden)),
        *modules({f"{OURS}.router": f"{THEIRS}.router"}),
        same("blocks.{n}.token_mixer.scores.sink", "model.layers.{n}.self_attn.sinks"),
    ]
    return sizes.foreign(overrides, rules, [near if each == SLIDING else LayerFacts() for each in types])


def _expert_rules(count: int, hidden: int) -> list[ConversionRule]:
    """Of the experts; theirs are (E, inputs, outputs), and every other output of the first map is a gate."""

    def apart(theirs: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([each[..., ::2], each[..., 1::2]], -1).T for each in theirs[0]]

    def interleaved(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.stack([torch.stack([*each.T.split(hidden, -1)], -1).flatten(-2) for each in own])]

    def biases_apart(theirs: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([each[::2], each[1::2]]) for each in theirs[0]]

    def biases_interleaved(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.stack([torch.stack([*each.split(hidden)], -1).flatten() for each in own])]

    def transposed(weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return [each.T for each in weights[0]]

    def transposed_back(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.stack([each.T for each in own])]

    maps = {
        ("proj_in.weight", "gate_up_proj"): (apart, interleaved),
        ("proj_in.bias", "gate_up_proj_bias"): (biases_apart, biases_interleaved),
        ("proj_out.weight", "down_proj"): (transposed, transposed_back),
        ("proj_out.bias", "down_proj_bias"): (lambda x: [*x[0]], lambda own: [torch.stack([*own])]),
    }
    return [
        ConversionRule(tuple(f"{OURS}.expert.{e}.{own}" for e in range(count)), (f"{THEIRS}.experts.{name}",), *both)
        for (own, name), both in maps.items()
    ]


def write(run: Trained) -> LibraryConfig:
    """gpt-oss' config of a model of ours."""
    member = run.option(MEMBER) or {}
    return {
        **shared(run),
        **{key: value for key, value in written_types(run).items() if key != "use_sliding_window"},
        "num_local_experts": run.option("channel_mixer.count"),
        "num_experts_per_tok": run.option("channel_mixer.active"),
        "router_aux_loss_coef": run.option("channel_mixer.weight"),
        "swiglu_alpha": ALPHA,
        "swiglu_limit": member.get("limit") or 7.0,
        "attention_bias": bool(run.option("token_mixer.bias")),
    }


CONVERTER = Converter(
    "gpt_oss",
    "transformers",
    "GptOssForCausalLM",
    read,
    write,
    model_type="gpt_oss",
    uncompared=UNCOMPARED_OF_EXPERTS,
)
