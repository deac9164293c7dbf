"""The text side of GIT: words, positions, blocks and head. In transformers it reads features of an image encoder.

Reference: transformers GitForCausalLM
"""

from __future__ import annotations

from collections.abc import Iterable

from blockyard.contracts import DataSpec
from blockyard.weights.convert import keys
from blockyard.weights.convert.preset.bert import HEADS, LAYER, encoder, layers
from blockyard.weights.convert.rules import modules, same
from blockyard.weights.convert.settings import LibrarySettings

PARTLY = "transformers' GIT reads the features of a Vision Transformer of its own; the preset reads patches"
EMBEDDINGS = "git.embeddings"


def _read_images(settings: LibrarySettings, values: keys.Values) -> Iterable[str]:
    vision = LibrarySettings(settings.mapping("vision_config"), f"{settings.name}: vision_config")
    values["side"] = vision.integer("image_size", 224)
    return [f"source_tokenizer.size={vision.integer('patch_size', 16)}"]


CONVERTER = keys.declared(
    "git",
    "GitForCausalLM",
    [
        *(
            *encoder(),
            HEADS,
            keys.vocabulary(30522),
            keys.positions("max_position_embeddings", 1024),
            keys.Key(_read_images),
        ),
        keys.fixed("position_embedding_type", "absolute"),
        keys.fixed("tie_word_embeddings", False),
        keys.fixed("num_image_with_embedding", None),
    ],
    lambda _: [
        *layers(LAYER, "git.encoder.layer"),
        *modules({"blocks.0.first_norm": f"{EMBEDDINGS}.LayerNorm", "head.proj": "output"}),
        same("embedder.symbols.weight", f"{EMBEDDINGS}.word_embeddings.weight"),
        same("position.table", f"{EMBEDDINGS}.position_embeddings.weight"),
    ],
    lambda values: DataSpec(
        "text", (values["positions"],), variable=True, source=DataSpec("image", (3, values["side"], values["side"]))
    ),
    skipped=lambda name: (
        name.startswith(("git.image_encoder.", "git.visual_projection.", "git.img_temporal"))
        or name.endswith("position_ids")
    ),
    partly=PARTLY,
)
