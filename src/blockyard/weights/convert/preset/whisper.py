"""Whisper. Its keys have no bias. Our bias of keys changes nothing: it adds the same to all scores of a query.

Reference: transformers WhisperForConditionalGeneration
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.config.override_grammar import to_override
from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import MODEL_FAMILIES
from blockyard.weights.convert.rules import ConversionRule, block_modules, modules, per_block, same, table_and_head
from blockyard.weights.convert.settings import LibrarySettings

RATE, HOP = 16000, 160  # samples a second, and from one frame to the next
_WAVES = "model.encoder.embed_positions.weight"


def _read_base(_: LibrarySettings, values: keys.Values) -> list[str]:
    """Read the base that makes the last frequency 1 / 10000; with base 10000 our last one would be a step lower."""
    half = values["model.dim"] // 2
    return [to_override("source_position.base", float(10000 ** (half / (half - 1))))]


def _stack(stack: str, to: str) -> list[ConversionRule]:
    """Return the rules of one of the two stacks. to: the beginning of our names"""
    layer = f"model.{stack}.layers.{{n}}"
    names = {
        "token_norm": "self_attn_layer_norm",
        "token_mixer.proj_out": "self_attn.out_proj",
        "channel_mixer.proj_in": "fc1",
        "channel_mixer.proj_out": "fc2",
        "channel_norm": "final_layer_norm",
    }
    attention = {"token_mixer": "self_attn"}
    if stack == "decoder":
        names |= {"cross_norm": "encoder_attn_layer_norm", "cross_mixer.proj_out": "encoder_attn.out_proj"}
        attention["cross_mixer"] = "encoder_attn"
    block = f"{to}blocks.{{n}}"
    return [
        *block_modules(names, layer, model_block=block),
        *(_heads(f"{block}.{mixer}.proj_in", f"{layer}.{library_mixer}") for mixer, library_mixer in attention.items()),
        *modules({f"{to}final_norm": f"model.{stack}.layer_norm"}),
    ]


def _heads(module: str, library_module: str) -> ConversionRule:
    """Return the rule of queries, keys and values. The library's keys have no bias."""
    weights = [f"{library_module}.{part}_proj.weight" for part in "qkv"]
    biases = [f"{library_module}.{part}_proj.bias" for part in "qv"]

    def join(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        q, v = parts[3:]
        return [torch.cat(list(parts[:3])), torch.cat([q, torch.zeros_like(q), v])]

    def split(model_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        weight, bias = model_tensors
        q, _, v = bias.chunk(3)
        return [*weight.chunk(3), q, v]

    return ConversionRule((f"{module}.weight", f"{module}.bias"), (*weights, *biases), join, split)


def _waves(frames: int, dim: int) -> ConversionRule:
    """Return the rule of the waves of the encoder's positions. Ours are computed, and the stored ones must agree."""
    half = dim // 2
    speed = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / (half - 1))
    angles = torch.arange(frames, dtype=torch.float64)[:, None] * speed
    waves = torch.cat([angles.sin(), angles.cos()], 1).float()  # (frames, D)

    def check(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        if not torch.allclose(parts[0].float(), waves, atol=2e-3):
            raise UserError(f"{_WAVES} are not the waves of Whisper's paper, which ours computes")
        return []

    return ConversionRule((), (_WAVES,), check, lambda _: [waves])


def _rules(values: keys.Values) -> list[ConversionRule]:
    return [
        *per_block(_stack("encoder", "encoder."), values["model.encoder_depth"]),
        *_stack("decoder", ""),
        *modules({f"encoder.embedder.conv{n}": f"model.encoder.conv{n}" for n in (1, 2)}),
        *table_and_head("model.decoder.embed_tokens.weight", "proj_out.weight", is_tied=True),
        same("position.table", "model.decoder.embed_positions.weight"),
        _waves(values["frames"], values["model.dim"]),
    ]


def _speech(values: keys.Values) -> DataSpec:
    source = DataSpec("audio", (2 * values["frames"] * HOP,), variable=True, rate=RATE)
    return DataSpec("text", (values["positions"],), variable=True, source=source)


CONVERTER = keys.declared(
    "whisper",
    "WhisperForConditionalGeneration",
    [
        keys.whole("d_model", "model.dim", 384, least=4),
        keys.whole("encoder_attention_heads", "model.heads", 6),
        keys.whole(
            "encoder_layers", "model.encoder_depth", 4, lambda run: run.option("model.encoder_depth") or run.ctx.depth
        ),
        keys.whole("decoder_layers", "model.depth", 4),
        keys.hidden("encoder_ffn_dim", 1536),
        keys.equal("decoder_ffn_dim", "hidden", 1536, "encoder_ffn_dim={}", lambda run: run.hidden),
        keys.equal(
            "decoder_attention_heads", "model.heads", 6, "encoder_attention_heads={}", lambda run: run.ctx.heads
        ),
        keys.whole("num_mel_bins", "source_tokenizer.mels", 80),
        keys.whole("max_source_positions", "frames", 1500, lambda run: run.ctx.source_tokens.max_len),
        keys.positions("max_target_positions", 448),
        keys.vocabulary(51865),
        keys.Key(_read_base),
        keys.overrides("source_position.scale=1"),
        keys.fixed("scale_embedding", False),
        keys.fixed("activation_function", "gelu"),
        keys.fixed("tie_word_embeddings", True),
        keys.ignored("num_hidden_layers"),
        # Other tasks, and masking in training.
        keys.ignored("use_weighted_layer_sum classifier_proj_size apply_spec_augment mask_time_prob mask_time_length"),
        keys.ignored("mask_time_min_masks mask_feature_prob mask_feature_length mask_feature_min_masks"),
        keys.ignored("median_filter_width alignment_heads"),
        keys.written(
            pad_token_id=lambda run: run.ctx.tokens.end,
            bos_token_id=lambda run: run.ctx.tokens.start,
            eos_token_id=lambda run: run.ctx.tokens.end,
            decoder_start_token_id=lambda run: run.ctx.tokens.start,
            begin_suppress_tokens=None,
            suppress_tokens=None,
        ),
    ],
    _rules,
    _speech,
    families=("source_tokenizer", "source_position", *MODEL_FAMILIES),
)
