"""ViLT's blocks, patches and types. Theirs normalises the words before the blocks, ours do not.

Reference: transformers ViltModel
"""

from __future__ import annotations

from blockyard.contracts import DataSpec
from blockyard.weights.convert.converter import Converter, Foreign
from blockyard.weights.convert.preset.bert import EncoderSizes, layers
from blockyard.weights.convert.rules import mapped, modules, reshaped, same
from blockyard.weights.convert.settings import LibrarySettings

PARTLY = "transformers' ViLT normalises its words before the blocks, which the preset does not"
LAYER = {
    "token_norm": "layernorm_before",
    "token_mixer.proj_out": "attention.output.dense",
    "channel_norm": "layernorm_after",
    "channel_mixer.proj_in": "intermediate.dense",
    "channel_mixer.proj_out": "output.dense",
}


def read(settings: LibrarySettings) -> Foreign:
    """The sizes of the blocks as overrides."""
    sizes = EncoderSizes(settings)
    overrides = [*sizes.overrides, f"model.heads={settings.integer('num_attention_heads', 12)}"]
    settings.must("qkv_bias", True)
    settings.must("max_image_length", -1)
    settings.must("modality_type_vocab_size", 2, 3)
    settings.must("num_images", -1)
    for key in ("type_vocab_size", "tie_word_embeddings"):
        settings.take(key, None)
    side, patch = settings.integer("image_size", 384, is_dimension=False), settings.integer("patch_size", 32)
    channels = settings.integer("num_channels", 3)
    vocabulary, word_table = settings.integer("vocab_size", 30522), settings.integer("max_position_embeddings", 40)
    rules = layers(LAYER, "encoder.layer", sizes.depth, sizes.dim, "attention.attention") + modules(
        {"final_norm": "layernorm"}
    )
    patches, shape = "embeddings.patch_embeddings.projection", (sizes.dim, channels, patch, patch)
    rules += [
        reshaped("source.embedder.proj.weight", f"{patches}.weight", shape, (sizes.dim, channels * patch * patch)),
        same("source.embedder.proj.bias", f"{patches}.bias"),
        mapped(
            "types.vectors", "embeddings.token_type_embeddings.weight", lambda x: x[:2].flip(0), lambda x: x.flip(0)
        ),
    ]
    kept = {name for rule in rules for name in rule.theirs}
    image = DataSpec("image", (channels, side, side))
    return Foreign(
        [*overrides, f"source_tokenizer.size={patch}"],
        rules,
        DataSpec("text", (word_table - 1,), variable=True, target="class", classes=2, source=image),
        vocabulary,
        2,
        ignored=lambda name: name not in kept,
    )


CONVERTER = Converter("vilt", "transformers", "ViltModel", read, model_type="vilt", partly=PARTLY)
