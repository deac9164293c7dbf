"""PaLM by the block of Command-R, which is the same: parallel, without biases. It rotates neighbouring channels.

Its outputs have a factor, which our final norm takes over.

Reference: transformers CohereForCausalLM
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.preset.llama import AS_IS, Sizes, decoder, shared
from blockyard.weights.convert.rules import per_block, scaled
from blockyard.weights.convert.settings import LibrarySettings


def read(settings: LibrarySettings) -> Foreign:
    """Command-R's config as overrides."""
    sizes = Sizes(settings)
    settings.must("use_qk_norm", False)
    settings.must("attention_bias", False)
    is_tied = settings.flag("tie_word_embeddings", True)
    overrides = [*sizes.overrides, f"norm.eps={settings.number('layer_norm_eps', 1e-5)!r}"]
    overrides += [f"head.tied={boolean(is_tied)}"]
    halves = _halves(sizes.head_dim)
    rules = [rule for rule in decoder(sizes, is_tied, (halves, halves, AS_IS)) if rule.ours != ("final_norm.weight",)]
    rules += [scaled("final_norm.weight", "model.norm.weight", settings.number("logit_scale", 0.0625))]
    return sizes.foreign(overrides, per_block(rules, sizes.depth), is_tied)


def _halves(head_dim: int) -> tuple[Any, Any]:
    """Rows of a matrix of queries or keys: a pair of neighbours becomes one channel of each half, and back."""

    def apart(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)

    def beside(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)

    return apart, beside


def write(run: Trained) -> dict[str, Any]:
    """Command-R's config of a model of ours."""
    return shared(run) | {
        "layer_norm_eps": run.option("norm.eps") or 1e-5,
        "logit_scale": 1.0,
        "use_qk_norm": False,
        "attention_bias": False,
    }


CONVERTER = Converter("palm", "transformers", "CohereForCausalLM", read, write, model_type="cohere")
