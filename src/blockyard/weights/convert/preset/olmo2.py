"""OLMo 2: Llama with norms after the branches, and norms of queries and keys over all heads.

Reference: transformers Olmo2ForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    QK_NORMS,
    DecoderSizes,
    attention_rules,
    gated_rules,
    shared,
    table_rules,
)
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

NORMS = {
    "blocks.{n}.token_finish": "model.layers.{n}.post_attention_layernorm",
    "blocks.{n}.channel_finish": "model.layers.{n}.post_feedforward_layernorm",
}


def read(settings: LibrarySettings) -> Foreign:
    """OLMo 2's config as overrides."""
    sizes = DecoderSizes(settings)
    sizes.attention += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    is_tied = settings.is_tied(False)
    overrides = [*sizes.gated(), sizes.normed_eps(1e-5), f"head.tied={boolean(is_tied)}"]
    rules = [*attention_rules(sizes), *gated_rules(sizes.hidden), *modules(NORMS | QK_NORMS), *table_rules(is_tied)]
    return sizes.foreign(overrides, rules)


def write(run: Trained) -> LibraryConfig:
    """OLMo 2's config of a model of ours."""
    config = {key: value for key, value in shared(run).items() if key != "head_dim"}
    return config | {"attention_bias": bool(run.option("token_mixer.bias"))}


CONVERTER = Converter("olmo2", "transformers", "Olmo2ForCausalLM", read, write, model_type="olmo2")
