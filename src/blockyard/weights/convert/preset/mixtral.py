"""Mixtral: Llama with experts in every layer.

Reference: transformers MixtralForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    NORMS,
    UNCOMPARED_OF_EXPERTS,
    DecoderSizes,
    attention_rules,
    expert_rules,
    experts,
    shared,
    table_rules,
)
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings


def read(settings: LibrarySettings) -> Foreign:
    """Mixtral's config as overrides."""
    sizes = DecoderSizes(settings, theta=1e6)
    settings.must("sliding_window", None)
    count = settings.integer("num_local_experts", is_dimension=False)
    is_tied = settings.is_tied(False)
    overrides = [
        *experts(settings, sizes, count, "intermediate_size", normalise=True),
        sizes.eps(1e-5),
        f"head.tied={boolean(is_tied)}",
    ]
    theirs = "model.layers.{n}.block_sparse_moe"
    rules = [
        *(*attention_rules(sizes), *expert_rules(count, sizes.hidden, theirs, ("w1", "w3", "w2"))),
        *(*modules(NORMS), *table_rules(is_tied)),
    ]
    return sizes.foreign(overrides, rules)


def write(run: Trained) -> LibraryConfig:
    """Mixtral's config of a model of ours."""
    return shared(run) | {
        "num_local_experts": run.option("channel_mixer.count"),
        "num_experts_per_tok": run.option("channel_mixer.active"),
        "router_aux_loss_coef": run.option("channel_mixer.weight"),
        "sliding_window": None,
    }


CONVERTER = Converter(
    "mixtral",
    "transformers",
    "MixtralForCausalLM",
    read,
    write,
    model_type="mixtral",
    uncompared=UNCOMPARED_OF_EXPERTS,
)
