"""GPT-2. Its blocks store their matrices transposed.

Reference: transformers GPT2LMHeadModel
"""

from __future__ import annotations

import re

from blockyard.weights.convert import keys
from blockyard.weights.convert.rules import (
    KINDS,
    ConversionRule,
    block_modules,
    modules,
    same,
    table_and_head,
    transposed,
)

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"} | {
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}
BLOCK = "transformer.h.{n}"
MATRICES = {
    "token_mixer.proj_in": "attn.c_attn",
    "token_mixer.proj_out": "attn.c_proj",
    "channel_mixer.proj_in": "mlp.c_fc",
    "channel_mixer.proj_out": "mlp.c_proj",
}


def table(dim: int, depth: int, heads: int, activation: str) -> list[keys.Key]:
    """Return the keys that GPT-2 and Image GPT share, with the defaults of the class."""
    return [
        keys.fixed("scale_attn_by_inverse_layer_idx", False),
        keys.fixed("reorder_and_upcast_attn", False),
        keys.fixed("scale_attn_weights", True),
        keys.whole("n_embd", "model.dim", dim),
        keys.whole("n_layer", "model.depth", depth),
        keys.whole("n_head", "model.heads", heads),
        keys.hidden("n_inner", None),
        keys.choice("activation_function", "channel_mixer.activation", ACTIVATIONS, activation),
        keys.number("layer_norm_epsilon", "norm.eps", 1e-5),
        keys.positions("n_positions", 1024),
        keys.SPECIAL_TOKENS,
    ]


def blocks(kinds: tuple[str, ...]) -> list[ConversionRule]:
    """Return the rules of the blocks, the positions and the last norm. kinds: of weights of a norm"""
    matrices = []
    for model_name, library_name in MATRICES.items():
        for kind in KINDS:
            matrices.append(transposed(f"blocks.{{n}}.{model_name}.{kind}", f"{BLOCK}.{library_name}.{kind}"))
    return [
        *matrices,
        *block_modules({"token_norm": "ln_1", "channel_norm": "ln_2"}, BLOCK, kinds),
        *modules({"final_norm": "transformer.ln_f"}, kinds),
        same("position.table", "transformer.wpe.weight"),
    ]


def is_buffer(name: str) -> bool:
    """Return whether this is a causal mask that older files hold."""
    return bool(re.search(r"\.attn\.(masked_)?bias$", name))


CONVERTER = keys.declared(
    "gpt2",
    "GPT2LMHeadModel",
    [*table(768, 12, 12, "gelu_new"), keys.vocabulary(50257), keys.tied(True)],
    lambda values: [*blocks(KINDS), *table_and_head("transformer.wte.weight", is_tied=values["head.tied"])],
    skipped=is_buffer,
)
