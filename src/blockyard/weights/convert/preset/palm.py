"""PaLM by the block of Command-R: parallel, without biases. It rotates neighbouring channels.

Its outputs have a factor. Our final norm takes it over.

Reference: transformers CohereForCausalLM
"""

from __future__ import annotations

import torch

from blockyard.errors import UserError
from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.rules import AS_IS, ConversionRule, modules, permuted, scaled
from blockyard.weights.convert.settings import LibrarySettings

TOKEN_NORM = "blocks.{n}.token_norm"


def _check_heads(settings: LibrarySettings, values: keys.Values) -> None:
    if values["head_dim"] % 2:
        raise UserError(f"{settings.name}: head_dim={values['head_dim']}: expected an even number of channels")


def _rules(values: keys.Values) -> list[ConversionRule]:
    halves = []  # a pair of neighbours becomes one channel of each half of a head
    for heads in ("model.heads", "kv_heads"):
        pairs = torch.arange(values[heads] * values["head_dim"]).view(values[heads], -1, 2)
        halves.append(permuted(pairs.transpose(1, 2).flatten()))
    tables = [rule for rule in llama.table_rules(values) if rule.model_names != ("final_norm.weight",)]
    return [
        *(*llama.attention_rules(values, (*halves, AS_IS)), *llama.gated_rules(), *tables),
        *modules({TOKEN_NORM: llama.NORMS[TOKEN_NORM]}),  # a parallel block has one norm
        scaled("final_norm.weight", "model.norm.weight", values["factor"]),
    ]


CONVERTER = llama.decoder(
    "palm",
    "CohereForCausalLM",
    [
        *(
            *llama.sizes(),
            llama.positions(5e5),
            llama.GATED,
            keys.number("layer_norm_eps", "norm.eps", 1e-5),
            keys.tied(True),
        ),
        keys.Key(_check_heads),
        keys.number("logit_scale", "factor", 0.0625, lambda _: 1.0, above=0),
        keys.fixed("sliding_window", None),
        keys.fixed("use_sliding_window", False),
        keys.stated("use_qk_norm", False),
        keys.stated("attention_bias", False),
    ],
    _rules,
    model_type="cohere",
)
