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

OURS, THEIRS = "blocks.{n}.token_mixer", "backbone.layers.{n}.mixer"
INFINITE = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}], (0.0, math.inf))  # of steps, in each way of writing it


def mixer_rules(ours: str, theirs: str) -> list[ConversionRule]:
    """Of the weights of a mixer that both classes of transformers have as they are."""
    names = {"decay.rate": "A_log", "through": "D", "gain": "norm.weight", "conv.bias": "conv1d.bias"}
    return [
        *(same(f"{ours}.{own}", f"{theirs}.{name}") for own, name in names.items()),
        mapped(f"{ours}.conv.weight", f"{theirs}.conv1d.weight", lambda x: x[:, 0], lambda x: x[:, None]),
    ]


def _of_block(has_bias: bool, heads: int) -> list[ConversionRule]:
    def apart(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """The rows of z, x, B and C, and those of the steps."""
        return parts[0].split([len(parts[0]) - heads, heads])

    def join(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([*own])]

    def biases_apart(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        own, of_steps = apart(parts)
        return [own, parts[1] + of_steps]

    def join_biases(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([own[0], torch.zeros(heads)]), own[1]]

    step = same(f"{OURS}.decay.step", f"{THEIRS}.dt_bias")
    if has_bias:
        ours, theirs = (f"{OURS}.proj_in.bias", *step.ours), (f"{THEIRS}.in_proj.bias", *step.theirs)
        step = ConversionRule(ours, theirs, biases_apart, join_biases)
    maps = (f"{OURS}.proj_in.weight", f"{OURS}.proj_steps.weight")
    return [
        *(*mixer_rules(OURS, THEIRS), step),
        ConversionRule(maps, (f"{THEIRS}.in_proj.weight",), apart, join),
        *modules({f"{OURS}.proj_out": f"{THEIRS}.out_proj"}),
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
        # How initial weights are drawn, and how it is computed.
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
    # What the shapes of the weights say.
    uncompared=frozenset({"model.heads", "token_mixer.num_heads", "token_mixer.value_dim"}),
)
