"""Qwen3 with experts, in all layers or in some.

Reference: transformers Qwen3MoeForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    NORMS,
    QK_NORMS,
    UNCOMPARED_OF_EXPERTS,
    DecoderSizes,
    LayerFacts,
    attention_rules,
    dense_layers,
    expert_rules,
    experts,
    gated_rules,
    shared,
    table_rules,
    written_experts,
)
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings


def read(settings: LibrarySettings) -> Foreign:
    """The config of Qwen3-MoE as overrides."""
    sizes = DecoderSizes(settings)
    sizes.attention += ["token_mixer.qk_norm=true"]
    sizes.attention += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    settings.must("use_sliding_window", False)
    for key in ("sliding_window", "max_window_layers"):
        settings.take(key, None)  # of windows, which are not in use
    name = "num_local_experts" if "num_local_experts" in settings.values else "num_experts"
    count, hidden = settings.integer(name, is_dimension=False), settings.integer("moe_intermediate_size")
    dense = dense_layers(settings, sizes.depth)
    mixer = ("channel_mixer=glu", *sizes.gated()) if any(dense) else ()
    is_tied = settings.is_tied(False)
    overrides = [
        *experts(settings, sizes, count, "moe_intermediate_size", normalise=settings.flag("norm_topk_prob", False)),
        sizes.normed_eps(1e-6),
        f"head.tied={boolean(is_tied)}",
    ]
    routed, plain = expert_rules(count, hidden, "model.layers.{n}.mlp"), gated_rules(sizes.hidden)
    rules = [*attention_rules(sizes), *modules(NORMS | QK_NORMS), *table_rules(is_tied)]
    for layer, is_dense in enumerate(dense):
        rules += [rule.named(n=layer) for rule in (plain if is_dense else routed)]
    return sizes.foreign(overrides, rules, [LayerFacts(dense=mixer if each else ()) for each in dense])


def write(run: Trained) -> LibraryConfig:
    """The config of Qwen3-MoE for a model of ours. Raises UserError where no layer has experts."""
    dense, mixer, config = written_experts(run)
    return {
        **shared(run),
        **config,
        "num_local_experts": mixer["count"],
        "mlp_only_layers": dense,
        "decoder_sparse_step": 1,
        "router_aux_loss_coef": mixer["weight"],
        "attention_bias": bool(run.option("token_mixer.bias")),
        "use_sliding_window": False,
    }


CONVERTER = Converter(
    "qwen3_moe",
    "transformers",
    "Qwen3MoeForCausalLM",
    read,
    write,
    model_type="qwen3_moe",
    uncompared=UNCOMPARED_OF_EXPERTS,
)
