"""Qwen3: Llama with norms of the queries and keys of each head, and windows in some layers where a config has them.

Reference: transformers Qwen3ForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    NORMS,
    QK_NORMS,
    DecoderSizes,
    LayerFacts,
    attention_rules,
    gated_rules,
    shared,
    table_rules,
    written_types,
)
from blockyard.weights.convert.rotary import FULL, SLIDING
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings


def read(settings: LibrarySettings) -> Foreign:
    """Qwen3's config as overrides."""
    sizes = DecoderSizes(settings)
    sizes.attention += ["token_mixer.qk_norm=true"]
    sizes.attention += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    window, first = (
        sizes.window(4096, has_switch=True),
        settings.integer("max_window_layers", 28, least=0, is_dimension=False),
    )
    default = [SLIDING if window is not None and layer >= first else FULL for layer in range(sizes.depth)]
    layers = [LayerFacts(window if each == SLIDING else None) for each in sizes.layer_types(default)]
    is_tied = settings.is_tied(False)
    overrides = [
        *sizes.gated(),
        sizes.normed_eps(1e-6),
        f"head.tied={boolean(is_tied)}",
    ]
    rules = [*attention_rules(sizes), *gated_rules(sizes.hidden), *modules(NORMS | QK_NORMS), *table_rules(is_tied)]
    return sizes.foreign(overrides, rules, layers)


def write(run: Trained) -> LibraryConfig:
    """Qwen3's config of a model of ours."""
    return shared(run) | written_types(run) | {"attention_bias": bool(run.option("token_mixer.bias"))}


CONVERTER = Converter("qwen3", "transformers", "Qwen3ForCausalLM", read, write, model_type="qwen3")
