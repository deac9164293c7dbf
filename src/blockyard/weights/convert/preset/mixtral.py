"""Mixtral: Llama with experts in every layer.

Reference: transformers MixtralForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rules import modules

MODULES = "model.layers.{n}.block_sparse_moe", ("w1", "w3", "w2")

CONVERTER = llama.decoder(
    "mixtral",
    "MixtralForCausalLM",
    [
        *llama.sizes(),
        *(llama.positions(1e6), llama.experts("num_local_experts"), llama.eps(1e-5), keys.tied(False)),
        keys.stated("sliding_window", None),
    ],
    lambda values: [
        *(*llama.attention_rules(values), *modules(llama.NORMS), *llama.table_rules(values)),
        *llama.expert_rules(values["experts"], *MODULES),
    ],
    uncompared=llama.UNCOMPARED_OF_EXPERTS,
)
