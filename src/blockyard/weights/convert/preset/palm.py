"""PaLM by the block of Command-R, which is the same: parallel, without biases. It rotates neighbouring channels.

Its outputs have a factor, which our final norm takes over.

Reference: transformers CohereForCausalLM
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    AS_IS,
    NORMS,
    DecoderSizes,
    attention_rules,
    gated_rules,
    shared,
    table_rules,
)
from blockyard.weights.convert.rules import modules, scaled
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings


def read(settings: LibrarySettings) -> Foreign:
    """Command-R's config as overrides."""
    sizes = DecoderSizes(settings, theta=5e5)
    settings.must("sliding_window", None)
    settings.must("use_sliding_window", False)
    settings.must("use_qk_norm", False)
    settings.must("attention_bias", False)
    is_tied = settings.is_tied(True)
    overrides = [
        *sizes.gated(),
        f"norm.eps={settings.number('layer_norm_eps', 1e-5)!r}",
        f"head.tied={boolean(is_tied)}",
    ]
    halves = _halves(sizes.head_dim)
    rules = [*attention_rules(sizes, (halves, halves, AS_IS)), *gated_rules(sizes.hidden)]
    rules += modules({ours: theirs for ours, theirs in NORMS.items() if "token_norm" in ours})
    rules += [rule for rule in table_rules(is_tied) if rule.ours != ("final_norm.weight",)]
    rules += [scaled("final_norm.weight", "model.norm.weight", settings.number("logit_scale", 0.0625, above=0))]
    return sizes.foreign(overrides, rules)


def _halves(head_dim: int) -> tuple[Any, Any]:
    """Rows of a matrix of queries or keys: a pair of neighbours becomes one channel of each half, and back."""

    def apart(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)

    def beside(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)

    return apart, beside


def write(run: Trained) -> LibraryConfig:
    """Command-R's config of a model of ours."""
    return {key: value for key, value in shared(run).items() if key != "rms_norm_eps"} | {
        "layer_norm_eps": run.option("norm.eps") or 1e-5,
        "logit_scale": 1.0,
        "use_qk_norm": False,
        "attention_bias": False,
    }


CONVERTER = Converter("palm", "transformers", "CohereForCausalLM", read, write, model_type="cohere")
