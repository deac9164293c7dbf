"""PaLM by the block of Command-R, which is the same: parallel, without biases. It rotates neighbouring channels.

Its outputs have a factor, which our final norm takes over.

Reference: transformers CohereForCausalLM
"""

from __future__ import annotations

import torch

from blockyard.errors import UserError
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.llama_family import (
    NORMS,
    DecoderSizes,
    attention_rules,
    gated_rules,
    shared,
    table_rules,
)
from blockyard.weights.convert.rules import AS_IS, BothWays, modules, permuted, scaled
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
    if sizes.head_dim % 2:
        raise UserError(f"{settings.name}: head_dim={sizes.head_dim}: expected an even number of channels")
    halves = [_halves(heads, sizes.head_dim) for heads in (sizes.heads, sizes.kv_heads)]
    rules = [*attention_rules(sizes, (*halves, AS_IS)), *gated_rules(sizes.hidden)]
    rules += modules({ours: theirs for ours, theirs in NORMS.items() if "token_norm" in ours})
    rules += [rule for rule in table_rules(is_tied) if rule.ours != ("final_norm.weight",)]
    rules += [scaled("final_norm.weight", "model.norm.weight", settings.number("logit_scale", 0.0625, above=0))]
    return sizes.foreign(overrides, rules)


def _halves(heads: int, head_dim: int) -> BothWays:
    """Of queries or keys: a pair of neighbours becomes one channel of each half of a head."""
    return permuted(torch.arange(heads * head_dim).view(heads, head_dim // 2, 2).transpose(1, 2).flatten())


def write(run: Trained) -> LibraryConfig:
    """Command-R's config of a model of ours."""
    return {key: value for key, value in shared(run).items() if key != "rms_norm_eps"} | {
        "layer_norm_eps": run.option("norm.eps") or 1e-5,
        "logit_scale": 1.0,
        "use_qk_norm": False,
        "attention_bias": False,
    }


CONVERTER = Converter("palm", "transformers", "CohereForCausalLM", read, write, model_type="cohere")
