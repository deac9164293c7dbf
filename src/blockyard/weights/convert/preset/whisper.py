"""Whisper. Its keys have no bias, and ours have one that changes nothing: it adds the same to all scores of a query.

Reference: transformers WhisperForConditionalGeneration
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained, expansion
from blockyard.weights.convert.rules import ConversionRule, modules, per_block, same, table_and_head
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

RATE, HOP = 16000, 160  # samples a second, and from one frame to the next
# Of other tasks, and of masking in training.
_ELSEWHERE = [
    "use_weighted_layer_sum",
    "classifier_proj_size",
    "apply_spec_augment",
    "mask_time_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_feature_prob",
    "mask_feature_length",
    "mask_feature_min_masks",
    "median_filter_width",
    "alignment_heads",
]
_WAVES = "model.encoder.embed_positions.weight"


def read(settings: LibrarySettings) -> Foreign:
    """Whisper's config as overrides."""
    for key in _ELSEWHERE:
        settings.take(key, None)
    settings.must("scale_embedding", False)
    settings.must("activation_function", "gelu")
    settings.must("tie_word_embeddings", True)
    dim, heads = settings.integer("d_model", 384, least=4), settings.integer("encoder_attention_heads", 6)
    above, below = settings.integer("encoder_layers", 4), settings.integer("decoder_layers", 4)
    hidden = settings.integer("encoder_ffn_dim", 1536)
    settings.must("decoder_ffn_dim", hidden, default=1536, why=f"encoder_ffn_dim={hidden}")
    settings.must("decoder_attention_heads", heads, default=6, why=f"encoder_attention_heads={heads}")
    settings.take("num_hidden_layers", None)
    frames, length = settings.integer("max_source_positions", 1500), settings.integer("max_target_positions", 448)
    vocabulary = settings.integer("vocab_size", 51865)
    overrides = [
        f"model.dim={dim}",
        f"model.depth={below}",
        f"model.encoder_depth={above}",
        f"model.heads={heads}",
        expansion(hidden, dim),
        f"source_tokenizer.mels={settings.integer('num_mel_bins', 80)}",
        f"source_position.base={_base(dim)!r}",
        "source_position.scale=1",
    ]
    rules = [*_stack("encoder", "encoder.", above, dim), *_stack("decoder", "", below, dim)]
    rules += modules({f"encoder.embedder.conv{n}": f"model.encoder.conv{n}" for n in (1, 2)})
    rules += [
        *table_and_head("model.decoder.embed_tokens.weight", "proj_out.weight", is_tied=True),
        same("position.table", "model.decoder.embed_positions.weight"),
        _waves(frames, dim),
    ]
    source = DataSpec("audio", (2 * frames * HOP,), variable=True, rate=RATE)
    return Foreign(
        overrides,
        rules,
        DataSpec("text", (length,), variable=True, source=source),
        vocabulary,
        vocabulary,
    )


def _base(dim: int) -> float:
    """The base whose last frequency is 1 / 10000, as theirs; with 10000 ours would end one step later."""
    half = dim // 2
    return float(10000 ** (half / (half - 1)))


def _stack(stack: str, to: str, depth: int, dim: int) -> list[ConversionRule]:
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
    rules = modules({f"{to}blocks.{{n}}.{ours}": f"{layer}.{theirs}" for ours, theirs in names.items()})
    for ours, theirs in attention.items():
        rules.append(_heads(f"{to}blocks.{{n}}.{ours}.proj_in", f"{layer}.{theirs}", dim))
    return [*per_block(rules, depth), *modules({f"{to}final_norm": f"model.{stack}.layer_norm"})]


def _heads(ours: str, theirs: str, dim: int) -> ConversionRule:
    """Queries, keys and values, of which keys have no bias."""
    names = [f"{theirs}.{each}_proj.weight" for each in "qkv"] + [f"{theirs}.{each}_proj.bias" for each in "qv"]

    def join(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        q, v = parts[3:]
        return [torch.cat(list(parts[:3])), torch.cat([q, torch.zeros_like(q), v])]

    def part(own: Sequence[Tensor]) -> Sequence[Tensor]:
        q, _, v = own[1].split(dim)
        return [*own[0].split(dim), q, v]

    return ConversionRule((f"{ours}.weight", f"{ours}.bias"), tuple(names), join, part)


def _waves(frames: int, dim: int) -> ConversionRule:
    """The waves of the encoder's positions, which ours computes: what is stored must be them."""
    half = dim // 2
    speed = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / (half - 1))
    angles = torch.arange(frames, dtype=torch.float64)[:, None] * speed
    waves = torch.cat([angles.sin(), angles.cos()], 1).float()  # (frames, D)

    def check(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        if not torch.allclose(parts[0].float(), waves, atol=2e-3):
            raise UserError(f"{_WAVES} are not the waves of Whisper's paper, which ours computes")
        return []

    return ConversionRule((), (_WAVES,), check, lambda _: [waves])


def write(run: Trained) -> LibraryConfig:
    """Whisper's config of a model of ours."""
    source = run.ctx.source_tokens
    start = run.ctx.tokens.start
    return {
        "vocab_size": run.ctx.outputs,
        "num_mel_bins": run.option("source_tokenizer.mels") or 80,
        "d_model": run.ctx.dim,
        "encoder_layers": run.option("model.encoder_depth") or run.ctx.depth,
        "decoder_layers": run.ctx.depth,
        "encoder_attention_heads": run.ctx.heads,
        "decoder_attention_heads": run.ctx.heads,
        "encoder_ffn_dim": run.hidden,
        "decoder_ffn_dim": run.hidden,
        "max_source_positions": source.max_len,
        "max_target_positions": run.ctx.tokens.max_len,
        "pad_token_id": run.ctx.tokens.end,
        "bos_token_id": start,
        "eos_token_id": run.ctx.tokens.end,
        "decoder_start_token_id": start,
        "begin_suppress_tokens": None,
        "suppress_tokens": None,
    }


CONVERTER = Converter(
    "whisper",
    "transformers",
    "WhisperForConditionalGeneration",
    read,
    write,
    model_type="whisper",
    families=("source_tokenizer", "source_position", *MODEL),
)
