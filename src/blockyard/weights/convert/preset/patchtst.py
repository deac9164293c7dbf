"""PatchTST with a forecast of values.

Reference: transformers PatchTSTForPrediction
"""

from __future__ import annotations

from typing import Any

import torch

from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained, boolean, expansion
from blockyard.weights.convert.rules import modules, per_block, same, spare, stacked_modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

_PLAIN: dict[str, tuple[Any, ...]] = {
    "norm_type": ("batchnorm",),
    "pre_norm": (False,),
    "channel_attention": (False,),
    "use_cls_token": (False,),
    "pooling_type": (None,),
    "loss": ("mse",),
    "scaling": ("std",),
    "share_embedding": (True,),
    "share_projection": (True,),
    "do_mask_input": (None, False),
    "output_range": (None,),
    "activation_function": ("gelu",),
    "positional_encoding_type": ("sincos", "random"),
}
# Of masked pre-training, of sampling from a distribution, and of other tasks.
_ELSEWHERE = [
    "distribution_output",
    "mask_type",
    "random_mask_ratio",
    "num_forecast_mask_patches",
    "channel_consistent_masking",
    "unmasked_channel_indices",
    "mask_value",
    "num_parallel_samples",
    "num_targets",
]
_STATISTICS = ("weight", "bias", "running_mean", "running_var")
_ENCODER = "model.encoder"


def read(settings: LibrarySettings) -> Foreign:
    """PatchTST's config as overrides."""
    for key in _ELSEWHERE:
        settings.take(key, None)
    for key in ("pre_norm", "pooling_type"):
        settings.take(key)  # the class has another value where they are absent
    for key, allowed in _PLAIN.items():
        settings.must(key, *allowed)
    dim, depth = settings.integer("d_model", 128), settings.integer("num_hidden_layers", 3)
    steps = settings.integer("context_length", 32, is_dimension=False)
    horizon = settings.integer("prediction_length", 24)
    size, stride = settings.integer("patch_length", 1), settings.integer("patch_stride", 1, is_dimension=False)
    if (steps - size) % stride:
        settings.problems.append(f"context_length={steps}: patches of {size} every {stride} steps leave some out")
    settings.take("num_input_channels", 1)  # each is a series of its own, with the same weights
    bias = boolean(settings.flag("bias", True))
    overrides = [
        f"model.dim={dim}",
        f"model.depth={depth}",
        f"model.heads={settings.integer('num_attention_heads', 4)}",
        expansion(settings.integer("ffn_dim", 512), dim),
        f"channel_mixer.bias={bias}",
        f"token_mixer.bias={bias}",
        f"norm.eps={settings.number('norm_eps', 1e-5)!r}",
        f"tokenizer.size={size}",
        f"tokenizer.stride={stride}",
        "tokenizer.pad_end=false",
    ]
    layer = f"{_ENCODER}.layers.{{n}}"
    rules = [
        *modules({"blocks.{n}.token_mixer.proj_out": f"{layer}.self_attn.out_proj"}),
        *modules({"blocks.{n}.channel_mixer.proj_in": f"{layer}.ff.0"}),
        *modules({"blocks.{n}.channel_mixer.proj_out": f"{layer}.ff.3"}),
        *modules({"blocks.{n}.token_norm": f"{layer}.norm_sublayer1.batchnorm"}, _STATISTICS),
        *modules({"blocks.{n}.channel_norm": f"{layer}.norm_sublayer3.batchnorm"}, _STATISTICS),
    ]
    for norm in ("norm_sublayer1", "norm_sublayer3"):  # ours counts no batches
        rules.append(spare(f"{layer}.{norm}.batchnorm.num_batches_tracked", dtype=torch.int64))
    parts = [f"{layer}.self_attn.{each}_proj" for each in "qkv"]
    rules += stacked_modules("blocks.{n}.token_mixer.proj_in", parts, [dim] * 3)
    names = {"embedder.proj": f"{_ENCODER}.embedder.input_embedding", "head.proj": "head.projection"}
    table = same("position.table", f"{_ENCODER}.positional_encoder.position_enc")
    return Foreign(
        overrides,
        [*per_block(rules, depth), *modules(names), table],
        DataSpec("series", (steps, 1), target="values", values=(horizon, 1)),
    )


def write(run: Trained) -> LibraryConfig:
    """PatchTST's config of a model of ours."""
    if run.ctx.data.values is None:
        raise UserError("the data has no values to forecast")
    return {
        "num_input_channels": 1,
        "context_length": run.ctx.data.shape[0],
        "prediction_length": run.ctx.data.values[0],
        "patch_length": run.option("tokenizer.size") or 1,
        "patch_stride": run.option("tokenizer.stride") or 1,
        "d_model": run.ctx.dim,
        "num_hidden_layers": run.ctx.depth,
        "num_attention_heads": run.ctx.heads,
        "ffn_dim": run.hidden,
        "bias": bool(run.option("token_mixer.bias")),
        "norm_eps": run.option("norm.eps") or 1e-5,
        "norm_type": "batchnorm",
        "pre_norm": False,
        "pooling_type": None,
        "loss": "mse",
        "scaling": "std",
        "positional_encoding_type": "random",
        "head_dropout": 0.0,
    }


CONVERTER = Converter(
    "patchtst",
    "transformers",
    "PatchTSTForPrediction",
    read,
    write,
    model_type="patchtst",
    families=("tokenizer", *MODEL),
)
