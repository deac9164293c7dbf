"""ViLT's blocks, patches and types. The library normalises the words before the blocks, our preset does not.

Reference: transformers ViltModel
"""

from __future__ import annotations

from blockyard.contracts import DataSpec
from blockyard.weights.convert import keys
from blockyard.weights.convert.preset.bert import HEADS, encoder, layers
from blockyard.weights.convert.rules import ConversionRule, mapped, modules, reshaped, same

PARTLY = "transformers' ViLT normalises its words before the blocks, which the preset does not"
LAYER = {
    "token_norm": "layernorm_before",
    "token_mixer.proj_out": "attention.output.dense",
    "channel_norm": "layernorm_after",
    "channel_mixer.proj_in": "intermediate.dense",
    "channel_mixer.proj_out": "output.dense",
}
PATCHES = "embeddings.patch_embeddings.projection"


def _rules(values: keys.Values) -> list[ConversionRule]:
    dim, channels, patch = values["model.dim"], values["channels"], values["source_tokenizer.size"]
    shape = (dim, channels, patch, patch)
    return [
        *layers(LAYER, "encoder.layer", "attention.attention"),
        *modules({"final_norm": "layernorm"}),
        reshaped("source.embedder.proj.weight", f"{PATCHES}.weight", shape, (dim, channels * patch * patch)),
        same("source.embedder.proj.bias", f"{PATCHES}.bias"),
        mapped(
            "types.vectors", "embeddings.token_type_embeddings.weight", lambda x: x[:2].flip(0), lambda x: x.flip(0)
        ),
    ]


def _questions(values: keys.Values) -> DataSpec:
    image = DataSpec("image", (values["channels"], values["side"], values["side"]))
    length = values["positions"] - 1
    return DataSpec("text", (length,), variable=True, target="class", classes=2, source=image)


CONVERTER = keys.declared(
    "vilt",
    "ViltModel",
    [
        *(*encoder(), HEADS, keys.vocabulary(30522), keys.whole("max_position_embeddings", "positions", 40)),
        keys.whole("image_size", "side", 384, is_dimension=False),
        keys.whole("patch_size", "source_tokenizer.size", 32),
        keys.whole("num_channels", "channels", 3),
        keys.fixed("qkv_bias", True),
        keys.fixed("max_image_length", -1),
        keys.fixed("modality_type_vocab_size", 2, 3),
        keys.fixed("num_images", -1),
        keys.ignored("type_vocab_size tie_word_embeddings"),
    ],
    _rules,
    _questions,
    skipped=lambda _: True,
    partly=PARTLY,
)
