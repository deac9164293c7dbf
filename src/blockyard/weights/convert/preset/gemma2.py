"""Gemma 2: norms before and after the branches, windows in every second layer, soft caps on scores and logits.

Reference: transformers Gemma2ForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    FOUR_NORMS,
    DecoderSizes,
    LayerFacts,
    attention_rules,
    gated_rules,
    shared,
    table_rules,
    written_types,
)
from blockyard.weights.convert.rotary import FULL, SLIDING
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings


def read(settings: LibrarySettings) -> Foreign:
    """Gemma 2's config as overrides."""
    sizes = DecoderSizes(settings, activation=("hidden_activation", "gelu_pytorch_tanh"))
    scale = settings.number("query_pre_attn_scalar", 256, above=0) ** -0.5
    sizes.attention += [
        f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}",
        f"token_mixer.softcap={_cap(settings, 'attn_logit_softcapping', 50.0)}",
        f"token_mixer.score_scale={scale!r}",
    ]
    settings.must("use_bidirectional_attention", None, False)
    for key in ("hidden_act", "cache_implementation"):
        settings.take(key, None)  # which the class does not read: of an older one, and of generation
    types = sizes.layer_types([FULL if layer % 2 else SLIDING for layer in range(sizes.depth)])
    near = LayerFacts(sizes.window(4096))
    is_tied = settings.is_tied(True)
    overrides = [
        *(*sizes.gated(), sizes.eps(1e-6), "tokenizer.scale=sqrt_dim"),
        f"head.softcap={_cap(settings, 'final_logit_softcapping', 30.0)}",
        f"head.tied={boolean(is_tied)}",
    ]
    rules = [*attention_rules(sizes), *gated_rules(sizes.hidden), *modules(FOUR_NORMS), *table_rules(is_tied)]
    return sizes.foreign(overrides, rules, [near if each == SLIDING else LayerFacts() for each in types])


def _cap(settings: LibrarySettings, key: str, default: float) -> str:
    """A soft cap as an override writes it."""
    return "null" if settings.values.get(key, default) is None else repr(settings.number(key, default))


def write(run: Trained) -> LibraryConfig:
    """Gemma 2's config of a model of ours."""
    config, scale = shared(run), run.option("token_mixer.score_scale")
    return {
        **{key: value for key, value in config.items() if key != "hidden_act"},
        **{key: value for key, value in written_types(run).items() if key != "use_sliding_window"},
        "hidden_activation": config["hidden_act"],
        "attn_logit_softcapping": run.option("token_mixer.softcap"),
        "final_logit_softcapping": run.option("head.softcap"),
        "query_pre_attn_scalar": round(scale**-2) if isinstance(scale, int | float) else run.head_dim,
        "attention_bias": bool(run.option("token_mixer.bias")),
    }


CONVERTER = Converter("gemma2", "transformers", "Gemma2ForCausalLM", read, write, model_type="gemma2")
