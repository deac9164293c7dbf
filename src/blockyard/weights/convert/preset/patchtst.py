"""PatchTST with a forecast of values.

Reference: transformers PatchTSTForPrediction
"""

from __future__ import annotations

import torch

from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import MODEL_FAMILIES, Trained
from blockyard.weights.convert.rules import KINDS, block_modules, modules, same, spare, stacked_modules
from blockyard.weights.convert.settings import LibrarySettings

ENCODER = "model.encoder"
LAYER = f"{ENCODER}.layers.{{n}}"
LINEAR = {
    "token_mixer.proj_out": "self_attn.out_proj",
    "channel_mixer.proj_in": "ff.0",
    "channel_mixer.proj_out": "ff.3",
}
NORMS = {"token_norm": "norm_sublayer1.batchnorm", "channel_norm": "norm_sublayer3.batchnorm"}


def _check_patches(settings: LibrarySettings, values: keys.Values) -> None:
    """Note a problem for patches that leave steps out, and for keys without which the class has another value."""
    size, stride, steps = values["tokenizer.size"], values["tokenizer.stride"], values["steps"]
    if (steps - size) % stride:
        settings.problems.append(f"context_length={steps}: patches of {size} every {stride} steps leave some out")
    for name in ("pre_norm", "pooling_type"):
        settings.take(name)


def _horizon(run: Trained) -> int:
    if run.ctx.data.values is None:
        raise UserError("the data has no values to forecast")
    return run.ctx.data.values[0]


CONVERTER = keys.declared(
    "patchtst",
    "PatchTSTForPrediction",
    [
        keys.whole("d_model", "model.dim", 128),
        keys.whole("num_hidden_layers", "model.depth", 3),
        keys.whole("num_attention_heads", "model.heads", 4),
        keys.hidden("ffn_dim", 512),
        keys.whole("context_length", "steps", 32, lambda run: run.ctx.data.shape[0], is_dimension=False),
        keys.whole("prediction_length", "horizon", 24, _horizon),
        keys.whole("patch_length", "tokenizer.size", 1),
        keys.whole("patch_stride", "tokenizer.stride", 1, is_dimension=False),
        keys.overrides("tokenizer.pad_end=false"),
        keys.flag("bias", "token_mixer.bias channel_mixer.bias", True),
        keys.number("norm_eps", "norm.eps", 1e-5),
        keys.Key(_check_patches),
        keys.stated("norm_type", "batchnorm"),
        keys.stated("pre_norm", False),
        keys.stated("pooling_type", None),
        keys.stated("loss", "mse"),
        keys.stated("scaling", "std"),
        keys.fixed("positional_encoding_type", "sincos", "random"),
        keys.fixed("channel_attention", False),
        keys.fixed("use_cls_token", False),
        keys.fixed("share_embedding", True),
        keys.fixed("share_projection", True),
        keys.fixed("do_mask_input", None, False),
        keys.fixed("output_range", None),
        keys.fixed("activation_function", "gelu"),
        keys.ignored("num_input_channels"),  # each is a series of its own, with the same weights
        keys.written(num_input_channels=1, positional_encoding_type="random", head_dropout=0.0),
        # Of masked pre-training, of sampling from a distribution, and of other tasks.
        keys.ignored("distribution_output mask_type random_mask_ratio num_forecast_mask_patches num_parallel_samples"),
        keys.ignored("channel_consistent_masking unmasked_channel_indices mask_value num_targets"),
    ],
    lambda _: [
        *block_modules(LINEAR, LAYER),
        *block_modules(NORMS, LAYER, (*KINDS, "running_mean", "running_var")),
        # Ours counts no batches.
        *(spare(f"{LAYER}.{norm}.num_batches_tracked", dtype=torch.int64) for norm in NORMS.values()),
        *stacked_modules("blocks.{n}.token_mixer.proj_in", [f"{LAYER}.self_attn.{part}_proj" for part in "qkv"]),
        *modules({"embedder.proj": f"{ENCODER}.embedder.input_embedding", "head.proj": "head.projection"}),
        same("position.table", f"{ENCODER}.positional_encoder.position_enc"),
    ],
    lambda values: DataSpec("series", (values["steps"], 1), target="values", values=(values["horizon"], 1)),
    families=("tokenizer", *MODEL_FAMILIES),
)
