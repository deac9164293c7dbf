"""Wav2vec 2.0. Its positional convolution is stored as a direction and a length.

Reference: transformers Wav2Vec2ForCTC, the base model
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.config.override_grammar import to_override
from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import MODEL_FAMILIES, Trained
from blockyard.weights.convert.rules import (
    KINDS,
    ConversionRule,
    block_modules,
    mapped,
    modules,
    permuted,
    same,
    spare,
    stacked_modules,
)
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

RATE, SECONDS = 16000, 20
ENCODER, FEATURES = "wav2vec2.encoder", "wav2vec2.feature_extractor.conv_layers"
_LAYER = {
    "token_mixer.proj_out": "attention.out_proj",
    "token_norm": "layer_norm",
    "channel_mixer.proj_in": "feed_forward.intermediate_dense",
    "channel_mixer.proj_out": "feed_forward.output_dense",
    "channel_norm": "final_layer_norm",
}
AUDIO = DataSpec("audio", (RATE * SECONDS,), variable=True, rate=RATE)


def _read_convolutions(settings: LibrarySettings, values: keys.Values) -> list[str]:
    channels = settings.integers("conv_dim", [512] * 7)
    kernels = settings.integers("conv_kernel", [10, 3, 3, 3, 3, 2, 2])
    strides = settings.integers("conv_stride", [5, 2, 2, 2, 2, 2, 2])
    if len(set(channels)) != 1:
        settings.problems.append(f"conv_dim={channels}: expected the same number in every layer")
    values["convolutions"] = len(kernels)
    options = {"kernels": kernels, "strides": strides, "channels": channels[0]}
    return [to_override(f"source_tokenizer.{option}", value) for option, value in options.items()]


def _written_convolutions(run: Trained) -> LibraryConfig:
    kernels = run.option("source_tokenizer.kernels")
    if not kernels:
        raise UserError("source_tokenizer is not waveform, whose convolutions wav2vec 2.0 has")
    return {
        "conv_dim": [run.option("source_tokenizer.channels")] * len(kernels),
        "conv_kernel": list(kernels),
        "conv_stride": list(run.option("source_tokenizer.strides")),
        "num_feat_extract_layers": len(kernels),
    }


def _read_blank(settings: LibrarySettings, values: keys.Values) -> None:
    blank, outputs = settings.integer("pad_token_id", 0, least=0), values["outputs"]
    if blank >= outputs:
        raise UserError(f"{settings.name}: pad_token_id, which is the blank, must be below vocab_size={outputs}")
    values["blank"] = blank


def _rules(values: keys.Values) -> list[ConversionRule]:
    layer = f"{ENCODER}.layers.{{n}}"
    names = {f"embedder.convs.{n}": f"{FEATURES}.{n}.conv" for n in range(values["convolutions"])} | {
        "embedder.norms.0": f"{FEATURES}.0.layer_norm",
        "embedder.final_norm": "wav2vec2.feature_projection.layer_norm",
        "embedder.proj": "wav2vec2.feature_projection.projection",
        "blocks.0.first_norm": f"{ENCODER}.layer_norm",
    }
    # The library's blank is any token id, ours the last one, behind all labels.
    order = [token_id for token_id in range(values["outputs"]) if token_id != values["blank"]] + [values["blank"]]
    return [
        *block_modules(_LAYER, layer),
        *stacked_modules("blocks.{n}.token_mixer.proj_in", [f"{layer}.attention.{part}_proj" for part in "qkv"]),
        *(*modules(names), *_positions(), spare("wav2vec2.masked_spec_embed", values["model.dim"])),
        *(mapped(f"head.proj.{kind}", f"lm_head.{kind}", *permuted(torch.tensor(order))) for kind in KINDS),
    ]


def _positions() -> list[ConversionRule]:
    conv = f"{ENCODER}.pos_conv_embed.conv"
    names = (f"{conv}.parametrizations.weight.original0", f"{conv}.parametrizations.weight.original1")

    def norm(weight: Tensor) -> Tensor:
        return weight.norm(dim=(0, 1), keepdim=True)

    def join(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        length, direction = parts  # (1, 1, kernel), (D, D / groups, kernel)
        return [direction * (length / norm(direction))]

    return [
        ConversionRule(("position.weight",), names, join, lambda weights: [norm(weights[0]), weights[0]]),
        same("position.constant", f"{conv}.bias"),
    ]


CONVERTER = keys.declared(
    "wav2vec2",
    "Wav2Vec2ForCTC",
    [
        keys.whole("hidden_size", "model.dim", 768),
        keys.whole("num_hidden_layers", "model.depth", 12),
        keys.whole("num_attention_heads", "model.heads", 12),
        keys.hidden("intermediate_size", 3072),
        keys.Key(_read_convolutions, _written_convolutions),
        keys.whole("num_conv_pos_embeddings", "position.kernel", 128),
        keys.whole(
            "num_conv_pos_embedding_groups",
            "position.groups",
            16,
            lambda run: run.option("position.groups") or run.ctx.dim,
        ),
        keys.whole("vocab_size", "outputs", 32, lambda run: run.ctx.outputs),
        keys.Key(_read_blank, lambda run: {"pad_token_id": run.ctx.outputs - 1}),
        # Also of the norm of the features, which has no option of ours.
        keys.fixed("layer_norm_eps", 1e-5),
        keys.overrides("norm.eps=1e-5"),
        keys.written(layer_norm_eps=lambda run: run.option("norm.eps") or 1e-5),
        keys.fixed("feat_extract_norm", "group"),
        keys.fixed("feat_extract_activation", "gelu"),
        keys.fixed("hidden_act", "gelu"),
        keys.fixed("conv_bias", False),
        keys.fixed("do_stable_layer_norm", False),
        keys.fixed("add_adapter", False),
        keys.fixed("adapter_attn_dim", None),
        # Pre-training, other tasks, and masking in training.
        keys.ignored("apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob"),
        keys.ignored("mask_feature_length mask_feature_min_masks num_codevectors_per_group num_codevector_groups"),
        keys.ignored("num_negatives codevector_dim contrastive_logits_temperature proj_codevector_dim"),
        keys.ignored("diversity_loss_weight classifier_proj_size tdnn_dim tdnn_kernel tdnn_dilation"),
        keys.ignored("xvector_output_dim adapter_kernel_size adapter_stride num_adapter_layers output_hidden_size"),
        keys.ignored("num_feat_extract_layers use_weighted_layer_sum"),
    ],
    _rules,
    lambda _: DataSpec("text", (64,), variable=True, source=AUDIO),
    families=("source_tokenizer", *MODEL_FAMILIES),
    uncompared=frozenset({"source_tokenizer.standardize"}),  # which the library leaves to its feature extractor
)
