"""Image GPT: GPT-2 over the levels of pixels, with norms that have no bias.

Reference: transformers ImageGPTForCausalImageModeling
"""

from __future__ import annotations

import math

from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained
from blockyard.weights.convert.preset.gpt2 import ACTIVATIONS, blocks, is_buffer, shared, sizes
from blockyard.weights.convert.rules import same
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings


def read(settings: LibrarySettings) -> Foreign:
    """Image GPT's config as overrides. Its last token id is the start of an image, which is never predicted."""
    overrides, positions, depth = sizes(settings, 512, 24, 8)
    vocabulary = settings.integer("vocab_size", 513)
    settings.must("tie_word_embeddings", False)
    activation = settings.one_of("activation_function", ACTIVATIONS, "quick_gelu")
    side = math.isqrt(positions)
    if side * side != positions:
        raise UserError(f"{settings.name}: n_positions={positions} is not a square number; images are squares here")
    rules = [
        *blocks(depth, ("weight",)),
        same("embedder.symbols.weight", "transformer.wte.weight"),
        same("head.proj.weight", "lm_head.weight"),
    ]
    return Foreign(
        [*overrides, f"channel_mixer.activation={activation}"],
        rules,
        DataSpec("image", (1, side, side), target="class", classes=2, levels=vocabulary - 1),
        vocabulary,
        vocabulary - 1,
        ignored=is_buffer,
    )


def write(run: Trained) -> LibraryConfig:
    """Image GPT's config of a model of ours."""
    return {"vocab_size": run.ctx.tokens.vocabulary, "tie_word_embeddings": False} | shared(run)


CONVERTER = Converter(
    "imagegpt",
    "transformers",
    "ImageGPTForCausalImageModeling",
    read,
    write,
    model_type="imagegpt",
    families=("tokenizer", *MODEL),
)
