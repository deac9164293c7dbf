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
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import CONTEXT
from blockyard.weights.convert.rules import ConversionRule, mapped, modules, per_block, same, table_and_head
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

OURS, THEIRS = "blocks.{n}.token_mixer", "backbone.layers.{n}.mixer"
# How initial weights are drawn, and how it is computed.
_ELSEWHERE = (
    "expand",
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "time_step_rank",
    "rescale_prenorm_residual",
    "residual_in_fp32",
)
INFINITE = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}], (0.0, math.inf))  # of steps, in each way of writing it


def read(settings: LibrarySettings) -> Foreign:
    """Mamba-2's config as overrides."""
    dim, depth = settings.integer("hidden_size", 4096), settings.integer("num_hidden_layers", 64)
    heads, width = settings.integer("num_heads", 128), settings.integer("head_dim", 64)
    groups, state = settings.integer("n_groups", 8, is_dimension=False), settings.integer("state_size", 128)
    vocabulary, eps = settings.integer("vocab_size", 32768), settings.number("layer_norm_epsilon", 1e-5)
    has_bias, is_tied = settings.flag("use_bias", False), settings.is_tied(False)
    settings.must("use_conv_bias", True)
    settings.must("hidden_act", "silu", "swish")
    settings.must("time_step_limit", *INFINITE)
    for key in _ELSEWHERE:
        settings.take(key, None)
    overrides = [
        *(f"model.dim={dim}", f"model.depth={depth}", "model.heads=1"),
        *(f"token_mixer.num_heads={heads}", f"token_mixer.value_dim={width}", f"token_mixer.state={state}"),
        *(f"token_mixer.groups={groups}", f"token_mixer.conv={settings.integer('conv_kernel', 4)}"),
        *(f"token_mixer.bias={boolean(has_bias)}", f"token_mixer.eps={eps!r}", f"norm.eps={eps!r}"),
        f"token_mixer.chunk={settings.integer('chunk_size', 256, is_dimension=False)}",
        f"head.tied={boolean(is_tied)}",
    ]
    rules = per_block(_of_block(has_bias, heads), depth)
    rules += table_and_head("backbone.embeddings.weight", is_tied=is_tied)
    return Foreign(
        overrides,
        [*rules, same("final_norm.weight", "backbone.norm_f.weight")],
        DataSpec("text", (CONTEXT,)),
        vocabulary,
        vocabulary,
        text=["data=code", f"data.context={CONTEXT}"],
    )


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


def write(run: Trained) -> LibraryConfig:
    """Mamba-2's config of a model of ours."""
    heads = (run.shape("blocks.0.token_mixer.decay.rate") or (1,))[0]
    inner = (run.shape("blocks.0.token_mixer.proj_out.weight") or (0, 2 * run.ctx.dim))[1]
    return {
        "vocab_size": run.ctx.outputs,
        "hidden_size": run.ctx.dim,
        "num_hidden_layers": run.ctx.depth,
        "num_heads": heads,
        "head_dim": inner // heads,
        "expand": inner / run.ctx.dim if inner % run.ctx.dim else inner // run.ctx.dim,
        "state_size": run.option("token_mixer.state"),
        "n_groups": run.option("token_mixer.groups"),
        "conv_kernel": run.option("token_mixer.conv"),
        "chunk_size": run.option("token_mixer.chunk"),
        "use_bias": bool(run.option("token_mixer.bias")),
        "use_conv_bias": True,
        "hidden_act": "silu",
        "layer_norm_epsilon": run.option("norm.eps"),
        "tie_word_embeddings": bool(run.option("head.tied")),
        "pad_token_id": None,
        "bos_token_id": run.ctx.tokens.start,
        "eos_token_id": run.ctx.tokens.end,
    }


# What the shapes of the weights say.
UNCOMPARED = frozenset({"model.heads", "token_mixer.num_heads", "token_mixer.value_dim"})
CONVERTER = Converter(
    "mamba2", "transformers", "Mamba2ForCausalLM", read, write, model_type="mamba2", uncompared=UNCOMPARED
)
