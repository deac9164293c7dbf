"""Qwen3 with experts, in all layers or in some.

Reference: transformers Qwen3MoeForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rules import modules

CONVERTER = llama.decoder(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    [
        *llama.sizes(),
        *(llama.positions(), llama.normed_eps(1e-6), keys.tied(False)),
        keys.option("token_mixer.qk_norm", True),
        llama.ATTENTION_BIAS,
        llama.experts(
            "num_experts",
            "moe_intermediate_size",
            alias="num_local_experts",
            normalise=False,
            write=lambda run: llama.written_experts(run, "num_local_experts"),
        ),
        llama.layers(llama.read_dense_layers),
        keys.ignored("sliding_window max_window_layers"),  # no layer has a window
        keys.stated("use_sliding_window", False),
    ],
    lambda values: [
        *(*llama.attention_rules(values), *modules(llama.NORMS | llama.QK_NORMS), *llama.table_rules(values)),
        *llama.rules_of_layers(values["dense"], llama.gated_rules(), llama.expert_rules(values["experts"])),
    ],
    uncompared=llama.UNCOMPARED_OF_EXPERTS,
)
