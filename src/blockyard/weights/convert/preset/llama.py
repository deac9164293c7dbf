"""Llama. Its rotary layout is ours.

Reference: transformers LlamaForCausalLM
"""

from __future__ import annotations

from typing import Any

from blockyard.contracts import DataSpec
from blockyard.errors import quoted
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.declared_sizes import real_number
from blockyard.weights.convert.rules import ConversionRule, modules, per_block, same, stacked, tied
from blockyard.weights.convert.settings import LibrarySettings

CONTEXT = 4096  # tokens of a run of an imported model; its rotary positions have no limit of their own
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
Maps = tuple[tuple[Any, ...], ...]
AS_IS = (lambda x: x, lambda x: x)


def read(settings: LibrarySettings) -> Foreign:
    """Llama's config as overrides."""
    sizes = Sizes(settings)
    overrides = [*sizes.overrides, f"norm.eps={settings.number('rms_norm_eps', 1e-6)!r}"]
    overrides += [f"token_mixer.bias={boolean(settings.flag('attention_bias', False))}"]
    overrides += [f"channel_mixer.bias={boolean(settings.flag('mlp_bias', False))}"]
    is_tied = settings.flag("tie_word_embeddings", False)
    overrides += [f"head.tied={boolean(is_tied)}"]
    rules = decoder(sizes, is_tied) + modules({"blocks.{n}.channel_norm": "model.layers.{n}.post_attention_layernorm"})
    return sizes.foreign(overrides, per_block(rules, sizes.depth), is_tied)


class Sizes:
    """What the configs of Llama and Command-R share."""

    def __init__(self, settings: LibrarySettings) -> None:
        self.dim, self.depth = settings.integer("hidden_size"), settings.integer("num_hidden_layers")
        self.heads = settings.integer("num_attention_heads")
        self.kv_heads = settings.optional_integer("num_key_value_heads") or self.heads
        self.head_dim = settings.optional_integer("head_dim") or self.dim // self.heads
        self.hidden, self.vocabulary = settings.integer("intermediate_size"), settings.integer("vocab_size")
        self.positions = settings.integer("max_position_embeddings", 2048, is_dimension=False)
        if self.hidden % 8:
            settings.problems.append(f"intermediate_size={self.hidden}: expected a multiple of 8")
        settings.must("sliding_window", None)
        settings.must("use_sliding_window", False)
        activation = settings.one_of("hidden_act", ACTIVATIONS, "silu")
        self.overrides = [
            f"model.dim={self.dim}",
            f"model.depth={self.depth}",
            f"model.heads={self.heads}",
            f"token_mixer.num_kv_heads={self.kv_heads}",
            f"channel_mixer.expansion={self.hidden / self.dim!r}",
            f"channel_mixer.activation={activation}",
            *_rotary(settings),
        ]
        if self.head_dim * self.heads != self.dim:
            self.overrides += [f"token_mixer.key_dim={self.head_dim}", f"token_mixer.value_dim={self.head_dim}"]

    def foreign(self, overrides: list[str], rules: list[ConversionRule], is_tied: bool) -> Foreign:
        """Everything as one."""
        context = min(self.positions, CONTEXT)
        return Foreign(
            overrides,
            rules,
            DataSpec("text", (context,)),
            self.vocabulary,
            self.vocabulary,
            text=["data=code", f"data.context={context}"],
            ignored=lambda name: name.endswith("rotary_emb.inv_freq") or (is_tied and name == "lm_head.weight"),
        )


def _rotary(settings: LibrarySettings) -> list[str]:
    """Of both ways to write it: keys of their own, and one mapping."""
    rope = settings.mapping("rope_parameters") or settings.mapping("rope_scaling")
    settings.take("rope_scaling", None)
    where = f"{settings.name}: rope_parameters"
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    theta = rope.pop("rope_theta", None)
    base = real_number(where, "rope_theta", theta) if theta else settings.number("rope_theta", 10000.0)
    settings.take("rope_theta", None)
    overrides = [f"position.base={base!r}"]
    if kind == "linear":
        factor = real_number(where, "factor", rope.pop("factor", 1.0))
        overrides += ["position.scaling=linear", f"position.factor={factor!r}"]
    elif kind != "default":
        settings.problems.append(f"rope_parameters.rope_type={quoted(kind)}: expected 'default' or 'linear'")
        return overrides
    share = rope.pop("partial_rotary_factor", 1.0)
    if share != 1.0 or settings.take("partial_rotary_factor", 1.0) != 1.0:
        settings.problems.append(f"partial_rotary_factor={quoted(share)}: expected 1.0")
    settings.problems += [f"rope_parameters.{key}={quoted(value)}: unknown" for key, value in rope.items()]
    return overrides


def decoder(sizes: Sizes, is_tied: bool, maps: Maps = (AS_IS, AS_IS, AS_IS)) -> list[ConversionRule]:
    """Rules but for the second norm; those of blocks have `{n}`. maps: of queries, keys and values."""
    layer, table, rules = "model.layers.{n}", "model.embed_tokens.weight", []
    widths = [sizes.heads * sizes.head_dim, *[sizes.kv_heads * sizes.head_dim] * 2]
    for kind in ("weight", "bias"):
        theirs = [f"{layer}.self_attn.{each}_proj.{kind}" for each in "qkv"]
        rules.append(stacked(f"blocks.{{n}}.token_mixer.proj_in.{kind}", theirs, widths, maps))
        theirs = [f"{layer}.mlp.{each}_proj.{kind}" for each in ("gate", "up")]
        rules.append(stacked(f"blocks.{{n}}.channel_mixer.proj_in.{kind}", theirs, [sizes.hidden] * 2))
    names = {
        "blocks.{n}.token_norm": f"{layer}.input_layernorm",
        "blocks.{n}.token_mixer.proj_out": f"{layer}.self_attn.o_proj",
        "blocks.{n}.channel_mixer.proj_out": f"{layer}.mlp.down_proj",
    }
    rules += modules(names)
    if is_tied:
        rules += [tied(("embedder.symbols.weight", "head.proj.weight"), table)]
    else:
        rules += [same("embedder.symbols.weight", table), same("head.proj.weight", "lm_head.weight")]
    return [*rules, same("final_norm.weight", "model.norm.weight")]


def write(run: Trained) -> dict[str, Any]:
    """Llama's config of a model of ours."""
    return shared(run) | {
        "rms_norm_eps": run.option("norm.eps") or 1e-6,
        "attention_bias": bool(run.option("token_mixer.bias")),
        "mlp_bias": bool(run.option("channel_mixer.bias")),
    }


def shared(run: Trained) -> dict[str, Any]:
    """The keys of Llama and Command-R."""
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    scaling = {"rope_type": "linear", "factor": run.option("position.factor")}
    rope = scaling if run.option("position.scaling") == "linear" else {"rope_type": "default"}
    return {
        "vocab_size": run.ctx.outputs,
        "hidden_size": run.ctx.dim,
        "intermediate_size": run.hidden,
        "num_hidden_layers": run.ctx.depth,
        "num_attention_heads": run.ctx.heads,
        "num_key_value_heads": run.kv_heads,
        "head_dim": run.head_dim,
        "hidden_act": names.get(run.option("channel_mixer.activation"), "silu"),
        "max_position_embeddings": run.ctx.tokens.max_len,
        "rope_parameters": rope | {"rope_theta": float(run.option("position.base") or 10000.0)},
        "tie_word_embeddings": bool(run.option("head.tied")),
        "pad_token_id": None,
        "bos_token_id": run.ctx.tokens.start,
        "eos_token_id": run.ctx.tokens.end,
    }


CONVERTER = Converter("llama", "transformers", "LlamaForCausalLM", read, write, model_type="llama")
