"""Gemma 3: norms before and after the branches, norms of queries and keys, and windows in most layers.

Layers with a window rotate by another base. Our scores are divided by the square root of a head's width; another
divisor of theirs becomes a factor on the gains of the queries' norms.

Reference: transformers Gemma3ForCausalLM
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    FOUR_NORMS,
    QK_NORMS,
    DecoderSizes,
    LayerFacts,
    attention_rules,
    gated_rules,
    shared,
    table_rules,
    written_types,
)
from blockyard.weights.convert.rotary import FULL, SLIDING, rotations, window_base, written_rotations
from blockyard.weights.convert.rules import mapped, modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

EVERY = 6  # layers of which one has no window, where a config does not name them


def read(settings: LibrarySettings) -> Foreign:
    """Gemma 3's config as overrides."""
    of_types = rotations(settings, ("rope_theta", 1e6), ("rope_local_base_freq", 1e4))
    sizes = DecoderSizes(settings, activation=("hidden_activation", "gelu_pytorch_tanh"), rope=of_types[FULL])
    sizes.attention += ["token_mixer.qk_norm=head"]
    sizes.attention += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        settings.must(key, None)
    settings.must("use_bidirectional_attention", False, None)
    every = settings.integer("sliding_window_pattern", EVERY, is_dimension=False)
    for key in ("_sliding_window_pattern", "cache_implementation"):
        settings.take(key, None)  # which the class does not read: what it writes itself, and of generation
    types = sizes.layer_types([SLIDING if (layer + 1) % every else FULL for layer in range(sizes.depth)])
    near = LayerFacts(sizes.window(4096), base=window_base(settings, of_types[SLIDING]))
    layers = [near if each == SLIDING else LayerFacts() for each in types]
    is_tied = settings.is_tied(True)
    overrides = [*sizes.gated(), sizes.normed_eps(1e-6), f"head.tied={boolean(is_tied)}", "tokenizer.scale=sqrt_dim"]
    factor = (sizes.head_dim / settings.number("query_pre_attn_scalar", 256, above=0)) ** 0.5
    rules = [
        *(*attention_rules(sizes), *gated_rules(sizes.hidden), *modules(FOUR_NORMS), *table_rules(is_tied)),
        *(_gain(ours, theirs, factor if "q_norm" in ours else 1.0) for ours, theirs in QK_NORMS.items()),
    ]
    return sizes.foreign(overrides, rules, layers)


def _gain(ours: str, theirs: str, factor: float) -> Any:
    """Of a norm of queries or keys, whose gain they store less one."""

    def to_ours(x: Tensor) -> Tensor:
        return (1 + x) * factor

    def to_theirs(x: Tensor) -> Tensor:
        return x / factor - 1

    return mapped(f"{ours}.weight", f"{theirs}.weight", to_ours, to_theirs)


def write(run: Trained) -> LibraryConfig:
    """Gemma 3's config of a model of ours."""
    config = shared(run)
    return {
        **{key: value for key, value in config.items() if key not in ("hidden_act", "rope_parameters")},
        **{key: value for key, value in written_types(run).items() if key != "use_sliding_window"},
        "hidden_activation": config["hidden_act"],
        "rope_parameters": written_rotations(run, config),
        "query_pre_attn_scalar": run.head_dim,
        "attention_bias": bool(run.option("token_mixer.bias")),
        "use_bidirectional_attention": False,
    }


CONVERTER = Converter("gemma3", "transformers", "Gemma3ForCausalLM", read, write, model_type="gemma3_text")
