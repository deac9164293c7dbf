"""Llama. Its rotary layout is ours.

Reference: transformers LlamaForCausalLM
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
    """Llama's config as overrides."""
    sizes = DecoderSizes(settings)
    settings.must("sliding_window", None)
    settings.must("use_sliding_window", False)
    sizes.attention += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    is_tied = settings.is_tied(False)
    overrides = [
        *sizes.gated(),
        f"channel_mixer.bias={boolean(settings.flag('mlp_bias', False))}",
        sizes.eps(1e-6),
        f"head.tied={boolean(is_tied)}",
    ]
    rules = [*attention_rules(sizes), *gated_rules(sizes.hidden), *modules(NORMS), *table_rules(is_tied)]
    return sizes.foreign(overrides, rules)


def write(run: Trained) -> LibraryConfig:
    """Llama's config of a model of ours."""
    biases = {"attention_bias": run.option("token_mixer.bias"), "mlp_bias": run.option("channel_mixer.bias")}
    return shared(run) | {key: bool(value) for key, value in biases.items()}


CONVERTER = Converter("llama", "transformers", "LlamaForCausalLM", read, write, model_type="llama")
