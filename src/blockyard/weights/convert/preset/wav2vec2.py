"""Wav2vec 2.0, whose positional convolution is stored as a direction and a length.

Reference: transformers Wav2Vec2ForCTC, the base model
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained, expansion
from blockyard.weights.convert.rules import (
    KINDS,
    ConversionRule,
    mapped,
    modules,
    per_block,
    permuted,
    same,
    spare,
    stacked_modules,
)
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

RATE, SECONDS = 16000, 20
# Of pre-training, of other tasks, and of masking in training.
_ELSEWHERE = [
    "apply_spec_augment",
    "mask_time_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_feature_prob",
    "mask_feature_length",
    "mask_feature_min_masks",
    "num_codevectors_per_group",
    "num_codevector_groups",
    "num_negatives",
    "codevector_dim",
    "contrastive_logits_temperature",
    "proj_codevector_dim",
    "diversity_loss_weight",
    "classifier_proj_size",
    "tdnn_dim",
    "tdnn_kernel",
    "tdnn_dilation",
    "xvector_output_dim",
    "adapter_kernel_size",
    "adapter_stride",
    "num_adapter_layers",
    "output_hidden_size",
    "num_feat_extract_layers",
    "use_weighted_layer_sum",
]
_LAYER = {
    "token_mixer.proj_out": "attention.out_proj",
    "token_norm": "layer_norm",
    "channel_mixer.proj_in": "feed_forward.intermediate_dense",
    "channel_mixer.proj_out": "feed_forward.output_dense",
    "channel_norm": "final_layer_norm",
}


def read(settings: LibrarySettings) -> Foreign:
    """Wav2vec's config as overrides."""
    for key in _ELSEWHERE:
        settings.take(key, None)
    for key, value in {
        "feat_extract_norm": "group",
        "feat_extract_activation": "gelu",
        "hidden_act": "gelu",
        "conv_bias": False,
        "do_stable_layer_norm": False,
        "add_adapter": False,
        "adapter_attn_dim": None,
        "layer_norm_eps": 1e-5,  # also of the norm of the features, which has no option of ours
    }.items():
        settings.must(key, value)
    dim, depth = settings.integer("hidden_size", 768), settings.integer("num_hidden_layers", 12)
    channels = settings.integers("conv_dim", [512] * 7)
    kernels = settings.integers("conv_kernel", [10, 3, 3, 3, 3, 2, 2])
    strides = settings.integers("conv_stride", [5, 2, 2, 2, 2, 2, 2])
    if len(set(channels)) != 1:
        settings.problems.append(f"conv_dim={channels}: expected the same number in every layer")
    vocabulary, blank = settings.integer("vocab_size", 32), settings.integer("pad_token_id", 0, least=0)
    if blank >= vocabulary:
        raise UserError(f"{settings.name}: pad_token_id, which is the blank, must be below vocab_size={vocabulary}")
    overrides = [
        f"model.dim={dim}",
        f"model.depth={depth}",
        f"model.heads={settings.integer('num_attention_heads', 12)}",
        expansion(settings.integer("intermediate_size", 3072), dim),
        "norm.eps=1e-5",
        f"source_tokenizer.kernels=[{','.join(map(str, kernels))}]",
        f"source_tokenizer.strides=[{','.join(map(str, strides))}]",
        f"source_tokenizer.channels={channels[0]}",
        f"position.kernel={settings.integer('num_conv_pos_embeddings', 128)}",
        f"position.groups={settings.integer('num_conv_pos_embedding_groups', 16)}",
    ]
    layer = "wav2vec2.encoder.layers.{n}"
    rules = modules({f"blocks.{{n}}.{ours}": f"{layer}.{theirs}" for ours, theirs in _LAYER.items()})
    parts = [f"{layer}.attention.{each}_proj" for each in "qkv"]
    rules += stacked_modules("blocks.{n}.token_mixer.proj_in", parts, [dim] * 3)
    features = "wav2vec2.feature_extractor.conv_layers"
    names = {f"embedder.convs.{n}": f"{features}.{n}.conv" for n in range(len(kernels))} | {
        "embedder.norms.0": f"{features}.0.layer_norm",
        "embedder.final_norm": "wav2vec2.feature_projection.layer_norm",
        "embedder.proj": "wav2vec2.feature_projection.projection",
        "blocks.0.first_norm": "wav2vec2.encoder.layer_norm",
    }
    return Foreign(
        overrides,
        [
            *(*per_block(rules, depth), *modules(names), *_positions(), spare("wav2vec2.masked_spec_embed", dim)),
            *_head(vocabulary, blank),
        ],
        DataSpec("text", (64,), variable=True, source=_audio()),
        outputs=vocabulary,
    )


def _head(vocabulary: int, blank: int) -> list[ConversionRule]:
    """Of the outputs: their blank is any token id, ours the last, behind all labels in their order."""
    order = torch.tensor([*(each for each in range(vocabulary) if each != blank), blank])
    return [mapped(f"head.proj.{kind}", f"lm_head.{kind}", *permuted(order)) for kind in KINDS]


def _audio() -> DataSpec:
    return DataSpec("audio", (RATE * SECONDS,), variable=True, rate=RATE)


def _positions() -> list[ConversionRule]:
    conv = "wav2vec2.encoder.pos_conv_embed.conv"
    names = (f"{conv}.parametrizations.weight.original0", f"{conv}.parametrizations.weight.original1")
    return [
        ConversionRule(("position.weight",), names, _joined, _apart),
        same("position.constant", f"{conv}.bias"),
    ]


def _joined(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    length, direction = parts  # (1, 1, kernel), (D, D / groups, kernel)
    return [direction * (length / _norm(direction))]


def _apart(parts: Sequence[Tensor]) -> Sequence[Tensor]:
    return [_norm(parts[0]), parts[0]]


def _norm(weight: Tensor) -> Tensor:
    return weight.norm(dim=(0, 1), keepdim=True)


def write(run: Trained) -> LibraryConfig:
    """Wav2vec's config of a model of ours."""
    kernels = run.option("source_tokenizer.kernels")
    if not kernels:
        raise UserError("source_tokenizer is not waveform, whose convolutions wav2vec 2.0 has")
    return {
        "vocab_size": run.ctx.outputs,
        "pad_token_id": run.ctx.outputs - 1,  # the blank
        "hidden_size": run.ctx.dim,
        "num_hidden_layers": run.ctx.depth,
        "num_attention_heads": run.ctx.heads,
        "intermediate_size": run.hidden,
        "layer_norm_eps": run.option("norm.eps") or 1e-5,
        "conv_dim": [run.option("source_tokenizer.channels")] * len(kernels),
        "conv_kernel": list(kernels),
        "conv_stride": list(run.option("source_tokenizer.strides")),
        "num_feat_extract_layers": len(kernels),
        "num_conv_pos_embeddings": run.option("position.kernel"),
        "num_conv_pos_embedding_groups": run.option("position.groups") or run.ctx.dim,
    }


CONVERTER = Converter(
    "wav2vec2",
    "transformers",
    "Wav2Vec2ForCTC",
    read,
    write,
    model_type="wav2vec2",
    families=("source_tokenizer", *MODEL),
    uncompared=frozenset({"source_tokenizer.standardize"}),  # which the library leaves to its feature extractor
)
