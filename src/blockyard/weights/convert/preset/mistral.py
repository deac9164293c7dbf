"""Mistral: Llama whose layers attend to a window.

Reference: transformers MistralForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    NORMS,
    DecoderSizes,
    attention_rules,
    gated_rules,
    shared,
    table_rules,
)
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings


def read(settings: LibrarySettings) -> Foreign:
    """Mistral's config as overrides."""
    sizes = DecoderSizes(settings)
    window = sizes.window(4096)
    mixer = ["token_mixer=attention"] if window is None else [f"token_mixer.window={window}"]
    is_tied = settings.is_tied(False)
    overrides = [
        *(*mixer, *sizes.gated()),
        sizes.eps(1e-6),
        f"head.tied={boolean(is_tied)}",
    ]
    rules = [*attention_rules(sizes), *gated_rules(sizes.hidden), *modules(NORMS), *table_rules(is_tied)]
    return sizes.foreign(overrides, rules)


def write(run: Trained) -> LibraryConfig:
    """Mistral's config of a model of ours."""
    return shared(run) | {"sliding_window": run.option("token_mixer.window")}


CONVERTER = Converter("mistral", "transformers", "MistralForCausalLM", read, write, model_type="mistral")
