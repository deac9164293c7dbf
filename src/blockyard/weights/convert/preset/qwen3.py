"""Qwen3: Llama with norms of the queries and keys of each head, and windows in some layers where a config has them.

Reference: transformers Qwen3ForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibrarySettings


def _read_layers(settings: LibrarySettings, values: keys.Values) -> list[llama.LayerFacts]:
    """Read the layers with a window: the last ones, if a config does not name them."""
    tokens = llama.window(settings, 4096, has_switch=True)
    first = settings.integer("max_window_layers", 28, least=0, is_dimension=False)
    types = llama.layer_types(settings, values, lambda layer: tokens is not None and layer >= first)
    return [llama.LayerFacts(tokens if is_near else None) for is_near in types]


CONVERTER = llama.decoder(
    "qwen3",
    "Qwen3ForCausalLM",
    [
        *(*llama.sizes(), llama.positions(), llama.GATED, llama.normed_eps(1e-6), keys.tied(False)),
        keys.option("token_mixer.qk_norm", True),
        llama.ATTENTION_BIAS,
        llama.layers(_read_layers, llama.switched_types),
    ],
    lambda values: [*llama.llama_rules(values), *modules(llama.NORMS | llama.QK_NORMS)],
)
