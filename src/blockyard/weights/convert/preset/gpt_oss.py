"""gpt-oss: experts with biases, sinks, and windows in every second layer.

The library stores all experts in one weight with alternating gates and values.

Reference: transformers GptOssForCausalLM
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rotary import rotary, written_rotary
from blockyard.weights.convert.rules import ConversionRule, modules, same
from blockyard.weights.convert.settings import LibrarySettings

ALPHA = 1.702  # of our activation quick_gelu
MIXER, MLP = "blocks.{n}.channel_mixer", "model.layers.{n}.mlp"
MEMBER = "channel_mixer.members.glu"
# Of the positions, if a config has no scaling.
SCALING = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}


def _read_positions(settings: LibrarySettings, _: keys.Values) -> list[str]:
    no_scaling = settings.take("rope_parameters", None) is None and not settings.mapping("rope_scaling")
    return rotary(settings, SCALING if no_scaling else None, theta=1.5e5)


def _expert_rules(count: int) -> list[ConversionRule]:
    """Return the rules of the experts.

    The library's weights are (E, inputs, outputs), and every other output of the first map is a gate.
    """

    def apart(weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([expert[..., ::2], expert[..., 1::2]], -1).T for expert in weights[0]]

    def interleaved(experts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.stack([torch.stack([*expert.T.chunk(2, -1)], -1).flatten(-2) for expert in experts])]

    def biases_apart(biases: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([bias[::2], bias[1::2]]) for bias in biases[0]]

    def biases_interleaved(biases: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.stack([torch.stack([*bias.chunk(2)], -1).flatten() for bias in biases])]

    def transposed(weights: Sequence[Tensor]) -> Sequence[Tensor]:
        return [expert.T for expert in weights[0]]

    def transposed_back(experts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.stack([expert.T for expert in experts])]

    maps = {
        ("proj_in.weight", "gate_up_proj"): (apart, interleaved),
        ("proj_in.bias", "gate_up_proj_bias"): (biases_apart, biases_interleaved),
        ("proj_out.weight", "down_proj"): (transposed, transposed_back),
        ("proj_out.bias", "down_proj_bias"): (lambda biases: [*biases[0]], lambda biases: [torch.stack([*biases])]),
    }
    rules = []
    for (model_name, library_name), (to_model, to_library) in maps.items():
        model_names = tuple(f"{MIXER}.expert.{e}.{model_name}" for e in range(count))
        rules.append(ConversionRule(model_names, (f"{MLP}.experts.{library_name}",), to_model, to_library))
    return rules


CONVERTER = llama.decoder(
    "gpt_oss",
    "GptOssForCausalLM",
    [
        *llama.sizes(),
        keys.Key(_read_positions, lambda run: {"rope_parameters": written_rotary(run)}),
        *(llama.eps(1e-5), keys.tied(False), keys.flag("attention_bias", "token_mixer.bias", True)),
        keys.option("token_mixer.sink", "learned"),
        llama.near_layers(2, 128),
        llama.experts("num_local_experts"),
        keys.overrides(f"{MEMBER}.activation=quick_gelu"),
        keys.stated("swiglu_alpha", ALPHA),
        keys.number("swiglu_limit", f"{MEMBER}.limit", 7.0),
        keys.fixed("quantization_config", None, why="weights of four bits are not read"),
        keys.equal("experts_per_token", "active", why="num_experts_per_tok says so"),
        keys.ignored("initial_context_length"),  # of the scaling of positions
    ],
    lambda values: [
        *(*llama.attention_rules(values), *modules(llama.NORMS), *llama.table_rules(values)),
        *_expert_rules(values["experts"]),
        *modules({f"{MIXER}.router": f"{MLP}.router"}),
        same("blocks.{n}.token_mixer.scores.sink", "model.layers.{n}.self_attn.sinks"),
    ],
    uncompared=llama.UNCOMPARED_OF_EXPERTS,
)
