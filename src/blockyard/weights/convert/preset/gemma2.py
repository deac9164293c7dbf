"""Gemma 2: norms before and after the branches, windows in every second layer, soft caps on scores and logits.

Reference: transformers Gemma2ForCausalLM
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.rules import modules
from blockyard.weights.convert.settings import LibrarySettings


def _cap(name: str, option: str, default: float) -> keys.Key:
    """Return the key of a soft cap, a number or null."""

    def take(settings: LibrarySettings, _: keys.Values) -> float | None:
        if settings.take(name, default) is None:
            return None
        return settings.number(name, default)

    return keys.key(name, option, take, lambda run: run.option(option))


def _divisor(run: Trained) -> int:
    scale = run.option("token_mixer.score_scale")
    if isinstance(scale, int | float):
        return round(scale**-2)  # the key is a whole number
    return run.head_dim


CONVERTER = llama.decoder(
    "gemma2",
    "Gemma2ForCausalLM",
    [
        *llama.sizes(activation="hidden_activation", usual="gelu_pytorch_tanh"),
        *(llama.positions(), llama.GATED, llama.eps(1e-6), keys.tied(True), llama.ATTENTION_BIAS),
        keys.overrides("tokenizer.scale=sqrt_dim"),
        _cap("attn_logit_softcapping", "token_mixer.softcap", 50.0),
        keys.key(
            "query_pre_attn_scalar",
            "token_mixer.score_scale",
            lambda settings, _: settings.number("query_pre_attn_scalar", 256, above=0) ** -0.5,
            _divisor,
        ),
        _cap("final_logit_softcapping", "head.softcap", 30.0),
        llama.near_layers(2, 4096),
        keys.fixed("use_bidirectional_attention", None, False),
        keys.ignored("hidden_act cache_implementation"),  # of an older class; this one does not read them
    ],
    lambda values: [*llama.llama_rules(values), *modules(llama.FOUR_NORMS)],
)
