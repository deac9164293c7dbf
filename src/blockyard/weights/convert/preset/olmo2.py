"""OLMo 2: Llama with norms after the branches, and norms of queries and keys over all heads.

Reference: transformers Olmo2ForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rules import block_modules, modules

NORMS = {"token_finish": "post_attention_layernorm", "channel_finish": "post_feedforward_layernorm"}

CONVERTER = llama.decoder(
    "olmo2",
    "Olmo2ForCausalLM",
    [*llama.sizes(), llama.positions(), llama.GATED, llama.normed_eps(1e-5), keys.tied(False), llama.ATTENTION_BIAS],
    lambda values: [*llama.llama_rules(values), *block_modules(NORMS, "model.layers.{n}"), *modules(llama.QK_NORMS)],
)
