"""The Perceiver's latents, their reading of the input and the blocks over them.

Reference: transformers PerceiverModel
"""

from __future__ import annotations

from blockyard.contracts import DataSpec
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import expansion
from blockyard.weights.convert.rules import ConversionRule, block_modules, modules, same, stacked_modules
from blockyard.weights.convert.settings import LibrarySettings

PARTLY = (
    "transformers' Perceiver has preprocessors, positions and a decoder of each task; the preset embeds pixels with "
    "waves and predicts from the mean latent"
)
LAYER = {
    "token_norm": "attention.self.layernorm1",
    "token_mixer.proj_out": "attention.output.dense",
    "channel_norm": "layernorm",
    "channel_mixer.proj_in": "mlp.dense1",
    "channel_mixer.proj_out": "mlp.dense2",
}


def _read_widths(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read the hidden width, a multiple of the width, and the widths of queries and values, which must be the width."""
    dim = values["model.dim"]
    for name in ("qk_channels", "v_channels"):
        settings.must(name, None, dim)
    values["widening"] = settings.integer("self_attention_widening_factor", 1)
    return [expansion(values["widening"] * dim, dim)]


def _layer(model_block: str, library_block: str) -> list[ConversionRule]:
    parts = [f"{library_block}.attention.self.{part}" for part in ("query", "key", "value")]
    rules = block_modules(LAYER, library_block, model_block=model_block)
    return rules + stacked_modules(f"{model_block}.token_mixer.proj_in", parts)


CONVERTER = keys.declared(
    "perceiver",
    "PerceiverModel",
    [
        keys.whole("d_latents", "model.dim", 1280),
        keys.whole("num_self_attends_per_block", "model.depth", 26),
        keys.whole("num_self_attention_heads", "model.heads", 8),
        keys.whole("num_latents", "model.num_latents", 256),
        keys.number("layer_norm_eps", "norm.eps", 1e-12),
        keys.Key(_read_widths),
        keys.equal("d_model", "model.dim", why="the width of the inputs; ours have that of the latents"),
        keys.equal("num_cross_attention_heads", "model.heads"),
        keys.equal("cross_attention_widening_factor", "widening"),
        keys.fixed("num_blocks", 1),
        keys.fixed("use_query_residual", True),
        keys.fixed("cross_attention_shape_for_attention", "kv", "q"),
        keys.fixed("hidden_act", "gelu"),
        # Preprocessors and decoders.
        keys.ignored("vocab_size max_position_embeddings image_size train_size num_frames audio_samples_per_frame"),
        keys.ignored("samples_per_patch output_shape output_num_channels"),
    ],
    lambda _: [
        same("latents.vectors", "embeddings.latents"),
        *_layer("read", "encoder.cross_attention"),
        *modules({"input_norm": "encoder.cross_attention.attention.self.layernorm2"}),
        *_layer("blocks.{n}", "encoder.self_attends.{n}"),
    ],
    lambda _: DataSpec("image", (1, 8, 8), target="class", classes=10),
    skipped=lambda name: not name.startswith(("embeddings.", "encoder.")),
    partly=PARTLY,
)
