"""Llama. Its rotary layout is ours.

Reference: transformers LlamaForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rules import modules

CONVERTER = llama.decoder(
    "llama",
    "LlamaForCausalLM",
    [
        *(
            *llama.sizes(),
            llama.positions(),
            llama.GATED,
            llama.eps(1e-6),
            keys.tied(False),
            llama.ATTENTION_BIAS,
            llama.MLP_BIAS,
        ),
        keys.fixed("sliding_window", None),
        keys.fixed("use_sliding_window", False),
    ],
    lambda values: [*llama.llama_rules(values), *modules(llama.NORMS)],
)
