"""Mistral: Llama with a window in every layer.

Reference: transformers MistralForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibrarySettings


def _read_window(settings: LibrarySettings, _: keys.Values) -> list[str]:
    tokens = llama.window(settings, 4096)
    if tokens is None:
        return ["token_mixer=attention"]
    return [f"token_mixer.window={tokens}"]


CONVERTER = llama.decoder(
    "mistral",
    "MistralForCausalLM",
    [
        *llama.sizes(),
        *(llama.positions(), llama.GATED, llama.eps(1e-6), keys.tied(False)),
        keys.Key(_read_window, lambda run: {"sliding_window": run.option("token_mixer.window")}),
    ],
    lambda values: [*llama.llama_rules(values), *modules(llama.NORMS)],
)
