"""Gemma 3: norms before and after the branches, norms of queries and keys, and windows in most layers.

Layers with a window rotate by another base. Our scores are divided by the square root of a head's width; another
divisor in a config becomes a factor on the gains of the queries' norms.

Reference: transformers Gemma3ForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rules import ConversionRule, mapped, modules


def _gain(model_name: str, library_name: str, factor: float) -> ConversionRule:
    """Return the rule of a norm of queries or keys. The library stores its gain minus one."""
    weights = (f"{model_name}.weight", f"{library_name}.weight")
    return mapped(*weights, lambda x: (1 + x) * factor, lambda x: x / factor - 1)


def _rules(values: keys.Values) -> list[ConversionRule]:
    factor = (values["head_dim"] / values["divisor"]) ** 0.5
    gains = []
    for model_name, library_name in llama.QK_NORMS.items():
        gains.append(_gain(model_name, library_name, factor if "q_norm" in model_name else 1.0))
    return [*llama.llama_rules(values), *modules(llama.FOUR_NORMS), *gains]


CONVERTER = llama.decoder(
    "gemma3",
    "Gemma3ForCausalLM",
    [
        *llama.sizes(activation="hidden_activation", usual="gelu_pytorch_tanh"),
        llama.positions_of_types(("rope_theta", 1e6), ("rope_local_base_freq", 1e4)),
        *(llama.GATED, llama.normed_eps(1e-6), keys.tied(True)),
        keys.option("token_mixer.qk_norm", "head"),
        llama.ATTENTION_BIAS,
        keys.overrides("tokenizer.scale=sqrt_dim"),
        keys.number("query_pre_attn_scalar", "divisor", 256, lambda run: run.head_dim, above=0),
        llama.near_layers(6, 4096, "sliding_window_pattern"),
        keys.fixed("attn_logit_softcapping", None),
        keys.fixed("final_logit_softcapping", None),
        keys.stated("use_bidirectional_attention", False, None),
        # The class writes the first itself, and the second is of generation; it reads neither.
        keys.ignored("_sliding_window_pattern cache_implementation"),
    ],
    _rules,
    model_type="gemma3_text",
)
