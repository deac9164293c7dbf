"""Mamba-2: blocks of one state-space mixer each.

It has two biases of the steps where it has biases at all; they add up to ours.

Reference: transformers Mamba2ForCausalLM
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import DataSpec
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.llama_family import CONTEXT
from blockyard.weights.convert.rules import ConversionRule, mapped, modules, same, table_and_head

MIXER, LIBRARY_MIXER = "blocks.{n}.token_mixer", "backbone.layers.{n}.mixer"
INFINITE = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}], (0.0, math.inf))  # of steps, in each way of writing it


def mixer_rules(mixer: str, library_mixer: str) -> list[ConversionRule]:
    """Return the rules of the weights that both classes of transformers store as our mixer does."""
    names = {"decay.rate": "A_log", "through": "D", "gain": "norm.weight", "conv.bias": "conv1d.bias"}
    return [
        *(same(f"{mixer}.{name}", f"{library_mixer}.{library_name}") for name, library_name in names.items()),
        mapped(f"{mixer}.conv.weight", f"{library_mixer}.conv1d.weight", lambda x: x[:, 0], lambda x: x[:, None]),
    ]


def _of_block(has_bias: bool, heads: int) -> list[ConversionRule]:
    def apart(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the rows of z, x, B and C, and the rows of the steps."""
        return parts[0].split([len(parts[0]) - heads, heads])

    def join(model_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([*model_tensors])]

    def biases_apart(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        inputs, steps = apart(parts)
        return [inputs, parts[1] + steps]

    def join_biases(model_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        # The library adds both biases of the steps, so that one of them may be zero.
        return [torch.cat([model_tensors[0], torch.zeros(heads)]), model_tensors[1]]

    step = same(f"{MIXER}.decay.step", f"{LIBRARY_MIXER}.dt_bias")
    if has_bias:
        model_names = (f"{MIXER}.proj_in.bias", *step.model_names)
        library_names = (f"{LIBRARY_MIXER}.in_proj.bias", *step.library_names)
        step = ConversionRule(model_names, library_names, biases_apart, join_biases)
    maps = (f"{MIXER}.proj_in.weight", f"{MIXER}.proj_steps.weight")
    return [
        *(*mixer_rules(MIXER, LIBRARY_MIXER), step),
        ConversionRule(maps, (f"{LIBRARY_MIXER}.in_proj.weight",), apart, join),
        *modules({f"{MIXER}.proj_out": f"{LIBRARY_MIXER}.out_proj"}),
        same("blocks.{n}.token_norm.weight", "backbone.layers.{n}.norm.weight"),
    ]


def _heads(run: Trained) -> int:
    return (run.shape("blocks.0.token_mixer.decay.rate") or (1,))[0]


def _inner(run: Trained) -> int:
    return (run.shape("blocks.0.token_mixer.proj_out.weight") or (0, 2 * run.ctx.dim))[1]


def _expand(run: Trained) -> float:
    inner, dim = _inner(run), run.ctx.dim
    return inner / dim if inner % dim else inner // dim


CONVERTER = keys.declared(
    "mamba2",
    "Mamba2ForCausalLM",
    [
        keys.whole("hidden_size", "model.dim", 4096),
        keys.whole("num_hidden_layers", "model.depth", 64),
        keys.overrides("model.heads=1"),
        keys.whole("num_heads", "token_mixer.num_heads", 128, _heads),
        keys.whole("head_dim", "token_mixer.value_dim", 64, lambda run: _inner(run) // _heads(run)),
        keys.whole("n_groups", "token_mixer.groups", 8, is_dimension=False),
        keys.whole("state_size", "token_mixer.state", 128),
        keys.whole("conv_kernel", "token_mixer.conv", 4),
        keys.whole("chunk_size", "token_mixer.chunk", 256, is_dimension=False),
        keys.flag("use_bias", "token_mixer.bias", False),
        keys.number("layer_norm_epsilon", "norm.eps token_mixer.eps", 1e-5),
        *(keys.vocabulary(32768), keys.tied(False), keys.SPECIAL_TOKENS),
        keys.stated("use_conv_bias", True),
        keys.stated("hidden_act", "silu", "swish"),
        keys.fixed("time_step_limit", *INFINITE),
        # Initial weights, and the order of computation.
        keys.ignored("expand time_step_min time_step_max time_step_floor time_step_rank rescale_prenorm_residual"),
        keys.ignored("residual_in_fp32"),
        keys.written(pad_token_id=None, expand=_expand),
    ],
    lambda values: [
        *_of_block(values["token_mixer.bias"], values["token_mixer.num_heads"]),
        *table_and_head("backbone.embeddings.weight", is_tied=values["head.tied"]),
        same("final_norm.weight", "backbone.norm_f.weight"),
    ],
    lambda _: DataSpec("text", (CONTEXT,)),
    # They follow from the shapes of the weights.
    uncompared=frozenset({"model.heads", "token_mixer.num_heads", "token_mixer.value_dim"}),
)
