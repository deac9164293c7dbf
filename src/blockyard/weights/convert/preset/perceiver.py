"""The Perceiver's latents, their reading of the input and the blocks over them.

Reference: transformers PerceiverModel
"""

from __future__ import annotations

from blockyard.contracts import DataSpec
from blockyard.weights.convert.converter import Converter, Foreign, expansion
from blockyard.weights.convert.rules import ConversionRule, modules, per_block, same, stacked_modules
from blockyard.weights.convert.settings import LibrarySettings

PARTLY = (
    "transformers' Perceiver has preprocessors, positions and a decoder of each task; the preset embeds pixels with "
    "waves and predicts from the mean latent"
)
# Of preprocessors and decoders.
_ELSEWHERE = [
    "vocab_size",
    "max_position_embeddings",
    "image_size",
    "train_size",
    "num_frames",
    "audio_samples_per_frame",
    "samples_per_patch",
    "output_shape",
    "output_num_channels",
]


def read(settings: LibrarySettings) -> Foreign:
    """The sizes of the latents and their blocks as overrides."""
    for key in _ELSEWHERE:
        settings.take(key, None)
    dim, depth = settings.integer("d_latents", 1280), settings.integer("num_self_attends_per_block", 26)
    heads = settings.integer("num_self_attention_heads", 8)
    for key in ("qk_channels", "v_channels"):
        settings.must(key, None, dim)
    settings.must("d_model", dim, why="the width of the inputs; ours have that of the latents")
    settings.must("num_cross_attention_heads", heads)
    settings.must("num_blocks", 1)
    settings.must("use_query_residual", True)
    settings.must("cross_attention_shape_for_attention", "kv", "q")
    settings.must("hidden_act", "gelu")
    widening = settings.integer("self_attention_widening_factor", 1)
    settings.must("cross_attention_widening_factor", widening)
    overrides = [
        f"model.dim={dim}",
        f"model.depth={depth}",
        f"model.heads={heads}",
        f"model.num_latents={settings.integer('num_latents', 256)}",
        f"norm.eps={settings.number('layer_norm_eps', 1e-12)!r}",
        expansion(widening * dim, dim),
    ]
    blocks = per_block(_layer("blocks.{n}", "encoder.self_attends.{n}", dim), depth)
    rules = [
        same("latents.vectors", "embeddings.latents"),
        *_layer("read", "encoder.cross_attention", dim),
        *modules({"input_norm": "encoder.cross_attention.attention.self.layernorm2"}),
        *blocks,
    ]
    return Foreign(
        overrides,
        rules,
        DataSpec("image", (1, 8, 8), target="class", classes=10),
        ignored=lambda name: not name.startswith(("embeddings.", "encoder.")),
    )


def _layer(ours: str, theirs: str, dim: int) -> list[ConversionRule]:
    names = {
        "token_norm": "attention.self.layernorm1",
        "token_mixer.proj_out": "attention.output.dense",
        "channel_norm": "layernorm",
        "channel_mixer.proj_in": "mlp.dense1",
        "channel_mixer.proj_out": "mlp.dense2",
    }
    rules = modules({f"{ours}.{own}": f"{theirs}.{name}" for own, name in names.items()})
    parts = [f"{theirs}.attention.self.{each}" for each in ("query", "key", "value")]
    return rules + stacked_modules(f"{ours}.token_mixer.proj_in", parts, [dim] * 3)


CONVERTER = Converter("perceiver", "transformers", "PerceiverModel", read, model_type="perceiver", partly=PARTLY)
