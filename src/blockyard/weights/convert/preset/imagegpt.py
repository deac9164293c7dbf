"""Image GPT: GPT-2 over the levels of pixels, with norms that have no bias.

Its last token id is the start of an image, which is never predicted.

Reference: transformers ImageGPTForCausalImageModeling
"""

from __future__ import annotations

import math

from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import MODEL_FAMILIES
from blockyard.weights.convert.preset.gpt2 import blocks, is_buffer, table
from blockyard.weights.convert.rules import table_and_head
from blockyard.weights.convert.settings import LibrarySettings


def read_levels(settings: LibrarySettings, values: keys.Values) -> None:
    """Read the number of token ids, and the side of an image. Raises UserError for an image that is not a square."""
    values["vocabulary"] = settings.integer("vocab_size", 513)
    values["outputs"] = values["vocabulary"] - 1
    values["side"] = math.isqrt(values["positions"])
    if values["side"] ** 2 != values["positions"]:
        raise UserError(
            f"{settings.name}: n_positions={values['positions']} is not a square number; images are squares here"
        )


def images(values: keys.Values) -> DataSpec:
    """Return gray images of as many levels as can be predicted."""
    shape = (1, values["side"], values["side"])
    return DataSpec("image", shape, target="class", classes=2, levels=values["outputs"])


CONVERTER = keys.declared(
    "imagegpt",
    "ImageGPTForCausalImageModeling",
    [
        *table(512, 24, 8, "quick_gelu"),
        keys.Key(read_levels, lambda run: {"vocab_size": run.ctx.tokens.vocabulary}),
        keys.stated("tie_word_embeddings", False),
    ],
    lambda _: [*blocks(("weight",)), *table_and_head("transformer.wte.weight", is_tied=False)],
    images,
    skipped=is_buffer,
    families=("tokenizer", *MODEL_FAMILIES),
)
