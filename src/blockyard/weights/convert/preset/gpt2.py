"""GPT-2, whose blocks store their matrices transposed.

Reference: transformers GPT2LMHeadModel
"""

from __future__ import annotations

import re

from blockyard.contracts import DataSpec
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean, expansion
from blockyard.weights.convert.rules import ConversionRule, modules, per_block, same, table_and_head, transposed
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings, inverse

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu"} | {
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}
_MATRICES = {
    "token_mixer.proj_in": "attn.c_attn",
    "token_mixer.proj_out": "attn.c_proj",
    "channel_mixer.proj_in": "mlp.c_fc",
    "channel_mixer.proj_out": "mlp.c_proj",
}


def sizes(settings: LibrarySettings, dim: int, depth: int, heads: int) -> tuple[list[str], int, int]:
    """Overrides that GPT-2 and Image GPT share, the number of positions, and of blocks.

    dim, depth, heads: of the class, where a config does not say so
    """
    for key in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        settings.must(key, False)
    settings.must("scale_attn_weights", True)
    dim, depth = settings.integer("n_embd", dim), settings.integer("n_layer", depth)
    hidden = settings.optional_integer("n_inner") or 4 * dim
    overrides = [f"model.dim={dim}", f"model.depth={depth}", f"model.heads={settings.integer('n_head', heads)}"]
    overrides += [expansion(hidden, dim), f"norm.eps={settings.number('layer_norm_epsilon', 1e-5)!r}"]
    return overrides, settings.integer("n_positions", 1024), depth


def blocks(depth: int, kinds: tuple[str, ...]) -> list[ConversionRule]:
    """Rules of the blocks, the positions and the norm behind them. kinds: of weights of a norm."""
    rules = [
        transposed(f"blocks.{{n}}.{ours}.{kind}", f"transformer.h.{{n}}.{theirs}.{kind}")
        for ours, theirs in _MATRICES.items()
        for kind in ("weight", "bias")
    ]
    norms = {"token_norm": "ln_1", "channel_norm": "ln_2"}
    rules += modules({f"blocks.{{n}}.{k}": f"transformer.h.{{n}}.{v}" for k, v in norms.items()}, kinds)
    last = modules({"final_norm": "transformer.ln_f"}, kinds)
    return [*per_block(rules, depth), *last, same("position.table", "transformer.wpe.weight")]


def is_buffer(name: str) -> bool:
    """Whether this is a causal mask that older files hold."""
    return bool(re.search(r"\.attn\.(masked_)?bias$", name))


def read(settings: LibrarySettings) -> Foreign:
    """GPT-2's config as overrides."""
    overrides, positions, depth = sizes(settings, 768, 12, 12)
    vocabulary = settings.integer("vocab_size", 50257)
    is_tied = settings.is_tied(True)
    activation = settings.one_of("activation_function", ACTIVATIONS, "gelu_new")
    overrides += [f"channel_mixer.activation={activation}", f"head.tied={boolean(is_tied)}"]
    rules = [*blocks(depth, ("weight", "bias")), *table_and_head("transformer.wte.weight", is_tied=is_tied)]
    return Foreign(
        overrides,
        rules,
        DataSpec("text", (positions,)),
        vocabulary,
        vocabulary,
        text=["data=code", f"data.context={positions}"],
        ignored=is_buffer,
    )


def write(run: Trained) -> LibraryConfig:
    """GPT-2's config of a model of ours."""
    return {
        "vocab_size": run.ctx.outputs,
        "tie_word_embeddings": bool(run.option("head.tied")),
        **shared(run),
    }


def shared(run: Trained) -> LibraryConfig:
    """The settings that GPT-2 and Image GPT have in common, by the library's keys."""
    return {
        "n_positions": run.ctx.tokens.max_len,
        "n_embd": run.ctx.dim,
        "n_layer": run.ctx.depth,
        "n_head": run.ctx.heads,
        "n_inner": run.hidden,
        "activation_function": inverse(ACTIVATIONS).get(run.option("channel_mixer.activation"), "gelu_new"),
        "layer_norm_epsilon": run.option("norm.eps") or 1e-5,
        "bos_token_id": run.ctx.tokens.start,
        "eos_token_id": run.ctx.tokens.end,
    }


CONVERTER = Converter("gpt2", "transformers", "GPT2LMHeadModel", read, write, model_type="gpt2")
