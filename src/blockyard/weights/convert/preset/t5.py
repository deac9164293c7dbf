"""T5: a factor that we have and T5 has not goes into the weights beside it.

Its attention does not divide scores by sqrt(K), and where the output layer shares the table, it divides by sqrt(D).

Reference: transformers T5ForConditionalGeneration
"""

from __future__ import annotations

from dataclasses import replace

from blockyard.contracts import DataSpec
from blockyard.errors import quoted
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean, expansion
from blockyard.weights.convert.rules import (
    AS_IS,
    ConversionRule,
    mapped,
    modules,
    per_block,
    same,
    scaled,
    stacked,
    stacked_modules,
    table_and_head,
)
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

LENGTH = 512  # tokens of each side; the biases have no limit of their own


def read(settings: LibrarySettings) -> Foreign:
    """T5's config as overrides."""
    dim, heads = settings.integer("d_model", 512), settings.integer("num_heads", 8)
    width, hidden = settings.integer("d_kv", 64), settings.integer("d_ff", 2048)
    depth = settings.integer("num_layers", 6)
    below = settings.optional_integer("num_decoder_layers") or depth
    buckets = settings.integer("relative_attention_num_buckets", 32)
    far = settings.integer("relative_attention_max_distance", 128, is_dimension=False)
    act = settings.take("feed_forward_proj", "relu")
    if act not in ("relu", "gated-gelu"):
        settings.problems.append(f"feed_forward_proj={quoted(act)}: expected 'relu' or 'gated-gelu'")
    gated = act == "gated-gelu"
    settings.must("dense_act_fn", "gelu_new" if gated else "relu", why="feed_forward_proj says so")
    settings.must("is_gated_act", gated, why="feed_forward_proj says so")
    if gated and hidden % 8:
        settings.problems.append(f"d_ff={hidden}: expected a multiple of 8")
    is_tied = settings.is_tied(True)
    # Files of version 1.1 say that nothing is tied, or, as transformers 5 saves them, that all is and nothing scaled.
    divides = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", True))
    vocabulary = settings.integer("vocab_size", 32128)
    overrides = [
        f"model.dim={dim}",
        f"model.depth={below}",
        f"model.encoder_depth={depth}",
        f"model.heads={heads}",
        f"position.buckets={buckets}",
        f"position.far={far}",
        *(["channel_mixer=glu", "channel_mixer.activation=gelu_tanh", "channel_mixer.bias=false"] if gated else []),
        f"channel_mixer.expansion={hidden / dim!r}" if gated else expansion(hidden, dim),
        f"norm.eps={settings.number('layer_norm_epsilon', 1e-6)!r}",
        f"head.tied={boolean(is_tied)}",
    ]
    if width * heads != dim:
        overrides += [f"{at}.{each}_dim={width}" for at in ("token_mixer", "model.cross") for each in ("key", "value")]
    rules = _stack("encoder", "encoder.", depth, heads * width, width, hidden, gated)
    rules += _stack("decoder", "", below, heads * width, width, hidden, gated)
    factor = dim**-0.5 if divides else 1.0
    rules.append(scaled("final_norm.weight", "decoder.final_layer_norm.weight", factor))
    table, *head = table_and_head("shared.weight", is_tied=is_tied)
    stacks = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # in older files, which hold copies
    rules += [replace(table, aliases=(*table.aliases, *stacks)), *head]
    return Foreign(
        overrides,
        rules,
        DataSpec("text", (LENGTH,), variable=True, source=DataSpec("text", (LENGTH,), variable=True)),
        vocabulary,
        vocabulary,
        ignored=lambda name: name == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    )


def _stack(stack: str, to: str, depth: int, inner: int, width: int, hidden: int, gated: bool) -> list[ConversionRule]:
    """Rules of one stack. inner: of all heads together."""
    layer, root = f"{stack}.block.{{n}}.layer", width**0.5
    queries = (lambda x: x * root, lambda x: x / root)
    names = {"token_norm": "0.layer_norm", "token_mixer.proj_out": "0.SelfAttention.o"}
    attention = {"token_mixer": "0.SelfAttention"}
    last = 1
    if stack == "decoder":
        names |= {"cross_norm": "1.layer_norm", "cross_mixer.proj_out": "1.EncDecAttention.o"}
        attention["cross_mixer"], last = "1.EncDecAttention", 2
    names |= {"channel_norm": f"{last}.layer_norm", "channel_mixer.proj_out": f"{last}.DenseReluDense.wo"}
    rules = modules({f"{to}blocks.{{n}}.{ours}": f"{layer}.{theirs}" for ours, theirs in names.items()}, ["weight"])
    for ours, theirs in attention.items():
        parts, maps = [f"{layer}.{theirs}.{each}" for each in "qkv"], (queries, AS_IS, AS_IS)
        rules += stacked_modules(f"{to}blocks.{{n}}.{ours}.proj_in", parts, [inner] * 3, maps, ["weight"])
    first, inside = f"{to}blocks.{{n}}.channel_mixer.proj_in.weight", f"{layer}.{last}.DenseReluDense.wi"
    rules.append(
        stacked(first, [f"{inside}_0.weight", f"{inside}_1.weight"], [hidden] * 2)
        if gated
        else same(first, f"{inside}.weight")
    )
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    rules = [*per_block(rules, depth), mapped(f"{to}position.table", bias, lambda x: x.T[None], lambda x: x[0].T)]
    return rules if to == "" else [*rules, same(f"{to}final_norm.weight", f"{stack}.final_layer_norm.weight")]


def write(run: Trained) -> LibraryConfig:
    """T5's config of a model of ours."""
    gated = str(run.option("channel_mixer._target_")).endswith(".GLU")
    is_tied = bool(run.option("head.tied"))
    start = run.ctx.tokens.start
    return {
        "vocab_size": run.ctx.outputs,
        "d_model": run.ctx.dim,
        "d_kv": run.head_dim,
        "d_ff": run.hidden,
        "num_layers": run.option("model.encoder_depth") or run.ctx.depth,
        "num_decoder_layers": run.ctx.depth,
        "num_heads": run.ctx.heads,
        "relative_attention_num_buckets": run.option("position.buckets") or 32,
        "relative_attention_max_distance": run.option("position.far") or 128,
        "layer_norm_epsilon": run.option("norm.eps") or 1e-6,
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "tie_word_embeddings": is_tied,
        "scale_decoder_outputs": is_tied,
        "pad_token_id": start,
        "decoder_start_token_id": start,
        "eos_token_id": run.ctx.tokens.end,
    }


CONVERTER = Converter("t5", "transformers", "T5ForConditionalGeneration", read, write, model_type="t5")
