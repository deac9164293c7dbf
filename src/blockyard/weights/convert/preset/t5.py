"""T5: a factor that our model has and T5 lacks goes into the weights beside it.

Its attention does not divide scores by sqrt(K). An output layer that shares the table divides its inputs by
sqrt(D).

Reference: transformers T5ForConditionalGeneration
"""

from __future__ import annotations

from dataclasses import replace

from blockyard.config.override_grammar import to_override
from blockyard.contracts import DataSpec
from blockyard.errors import quoted
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import Trained, expansion
from blockyard.weights.convert.rules import (
    AS_IS,
    ConversionRule,
    block_modules,
    mapped,
    per_block,
    same,
    scaled,
    stacked,
    stacked_modules,
    table_and_head,
)
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

LENGTH = 512  # tokens of each side; the biases have no limit of their own
SIDE = DataSpec("text", (LENGTH,), variable=True)


def _read_decoder(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read the number of blocks of the decoder, and widths of heads that do not divide the width."""
    values["model.depth"] = settings.optional_integer("num_decoder_layers") or values["model.encoder_depth"]
    width = values["head_dim"]
    texts = [to_override("model.depth", values["model.depth"])]
    if width * values["model.heads"] != values["model.dim"]:
        texts += [f"{at}.{name}_dim={width}" for at in ("token_mixer", "model.cross") for name in ("key", "value")]
    return texts


def _read_mixer(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read the channel mixer: an MLP, or one with gates."""
    act, hidden, dim = settings.take("feed_forward_proj", "relu"), settings.integer("d_ff", 2048), values["model.dim"]
    if act not in ("relu", "gated-gelu"):
        settings.problems.append(f"feed_forward_proj={quoted(act)}: expected 'relu' or 'gated-gelu'")
    gated = values["gated"] = act == "gated-gelu"
    settings.must("dense_act_fn", "gelu_new" if gated else "relu", why="feed_forward_proj says so")
    settings.must("is_gated_act", gated, why="feed_forward_proj says so")
    if not gated:
        return [expansion(hidden, dim)]
    if hidden % 8:
        settings.problems.append(f"d_ff={hidden}: expected a multiple of 8")
    ratio = to_override("channel_mixer.expansion", hidden / dim)
    return ["channel_mixer=glu", "channel_mixer.activation=gelu_tanh", "channel_mixer.bias=false", ratio]


def _written_mixer(run: Trained) -> LibraryConfig:
    gated = str(run.option("channel_mixer._target_")).endswith(".GLU")
    return {"d_ff": run.hidden, "feed_forward_proj": "gated-gelu" if gated else "relu"}


def _read_scale(settings: LibrarySettings, values: keys.Values) -> None:
    # Files of version 1.1 say that nothing is tied, or, as transformers 5 saves them, that all is and nothing scaled.
    values["divides"] = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", True))


def _rules(values: keys.Values) -> list[ConversionRule]:
    stacks = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # in older files, which hold copies
    table, *head = table_and_head("shared.weight", is_tied=values["head.tied"])
    factor = values["model.dim"] ** -0.5 if values["divides"] else 1.0
    width, gated = values["head_dim"], values["gated"]
    return [
        *per_block(_stack("encoder", "encoder.", width, gated=gated), values["model.encoder_depth"]),
        *_stack("decoder", "", width, gated=gated),
        same("encoder.final_norm.weight", "encoder.final_layer_norm.weight"),
        scaled("final_norm.weight", "decoder.final_layer_norm.weight", factor),
        *(replace(table, aliases=(*table.aliases, *stacks)), *head),
    ]


def _stack(stack: str, to: str, width: int, *, gated: bool) -> list[ConversionRule]:
    """Return the rules of one stack. to: the beginning of our names; width: of a head"""
    layer, block, root = f"{stack}.block.{{n}}.layer", f"{to}blocks.{{n}}", width**0.5
    queries = (lambda x: x * root, lambda x: x / root)
    names = {"token_norm": "0.layer_norm", "token_mixer.proj_out": "0.SelfAttention.o"}
    attention = {"token_mixer": "0.SelfAttention"}
    last = 1
    if stack == "decoder":
        names |= {"cross_norm": "1.layer_norm", "cross_mixer.proj_out": "1.EncDecAttention.o"}
        attention["cross_mixer"], last = "1.EncDecAttention", 2
    names |= {"channel_norm": f"{last}.layer_norm", "channel_mixer.proj_out": f"{last}.DenseReluDense.wo"}
    rules = block_modules(names, layer, ["weight"], block)
    for model_name, library_name in attention.items():
        parts, maps = [f"{layer}.{library_name}.{part}" for part in "qkv"], (queries, AS_IS, AS_IS)
        rules += stacked_modules(f"{block}.{model_name}.proj_in", parts, maps, kinds=["weight"])
    first, inside = f"{block}.channel_mixer.proj_in.weight", f"{layer}.{last}.DenseReluDense.wi"
    if gated:
        rules.append(stacked(first, [f"{inside}_0.weight", f"{inside}_1.weight"]))
    else:
        rules.append(same(first, f"{inside}.weight"))
    bias = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return [*rules, mapped(f"{to}position.table", bias, lambda x: x.T[None], lambda x: x[0].T)]


CONVERTER = keys.declared(
    "t5",
    "T5ForConditionalGeneration",
    [
        keys.whole("d_model", "model.dim", 512),
        keys.whole("num_heads", "model.heads", 8),
        keys.whole("d_kv", "head_dim", 64, lambda run: run.head_dim),
        keys.whole(
            "num_layers", "model.encoder_depth", 6, lambda run: run.option("model.encoder_depth") or run.ctx.depth
        ),
        keys.Key(_read_decoder, lambda run: {"num_decoder_layers": run.ctx.depth}),
        keys.whole("relative_attention_num_buckets", "position.buckets", 32),
        keys.whole("relative_attention_max_distance", "position.far", 128, is_dimension=False),
        keys.Key(_read_mixer, _written_mixer),
        keys.number("layer_norm_epsilon", "norm.eps", 1e-6),
        keys.tied(True),
        keys.Key(_read_scale, lambda run: {"scale_decoder_outputs": bool(run.option("head.tied"))}),
        keys.vocabulary(32128),
        keys.written(
            pad_token_id=lambda run: run.ctx.tokens.start,
            decoder_start_token_id=lambda run: run.ctx.tokens.start,
            eos_token_id=lambda run: run.ctx.tokens.end,
        ),
    ],
    _rules,
    lambda _: replace(SIDE, source=SIDE),
    skipped=lambda name: name == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
)
