"""The text side of GIT: words, positions, blocks and head. Theirs reads a pre-trained image encoder's features.

Reference: transformers GitForCausalLM
"""

from __future__ import annotations

from blockyard.contracts import DataSpec
from blockyard.weights.convert.converter import Converter, Foreign
from blockyard.weights.convert.preset.bert import LAYER, EncoderSizes, layers
from blockyard.weights.convert.rules import modules, same
from blockyard.weights.convert.settings import LibrarySettings

PARTLY = "transformers' GIT reads the features of a Vision Transformer of its own; the preset reads patches"


def read(settings: LibrarySettings) -> Foreign:
    """The sizes of the blocks over both as overrides."""
    sizes = EncoderSizes(settings)
    overrides = [*sizes.overrides, f"model.heads={settings.integer('num_attention_heads', 12)}"]
    settings.must("position_embedding_type", "absolute")
    settings.must("tie_word_embeddings", False)
    settings.must("num_image_with_embedding", None)
    vision = LibrarySettings(settings.mapping("vision_config"), f"{settings.name}: vision_config")
    side, patch = vision.integer("image_size", 224), vision.integer("patch_size", 16)
    vocabulary, positions = settings.integer("vocab_size", 30522), settings.integer("max_position_embeddings", 1024)
    embeddings = "git.embeddings"
    rules = layers(LAYER, "git.encoder.layer", sizes.depth, sizes.dim) + modules(
        {"blocks.0.first_norm": f"{embeddings}.LayerNorm", "head.proj": "output"}
    )
    rules += [
        same("embedder.symbols.weight", f"{embeddings}.word_embeddings.weight"),
        same("position.table", f"{embeddings}.position_embeddings.weight"),
    ]
    image = DataSpec("image", (3, side, side))
    return Foreign(
        [*overrides, f"source_tokenizer.size={patch}"],
        rules,
        DataSpec("text", (positions,), variable=True, source=image),
        vocabulary,
        vocabulary,
        ignored=lambda name: (
            name.startswith(("git.image_encoder.", "git.visual_projection.", "git.img_temporal"))
            or name.endswith("position_ids")
        ),
    )


CONVERTER = Converter("git", "transformers", "GitForCausalLM", read, model_type="git", partly=PARTLY)
