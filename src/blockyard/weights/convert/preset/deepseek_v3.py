"""DeepSeek V3: latent attention, and experts in groups beside a shared one in all but the first layers.

Their rotation pairs neighbouring channels, ours channels half of them apart. Their shared experts are one wide one.
Modules for several tokens ahead, which no prediction of the next token reads, are left out.

Reference: transformers DeepseekV3ForCausalLM
"""

from __future__ import annotations

import math

import torch

from blockyard.errors import UserError
from blockyard.weights.convert.converter import Converter, Foreign, Trained, boolean
from blockyard.weights.convert.declared_sizes import real_number
from blockyard.weights.convert.llama_family import (
    NORMS,
    UNCOMPARED_OF_EXPERTS,
    DecoderSizes,
    LayerFacts,
    expert_rules,
    experts,
    gated_rules,
    shared,
    shared_expert_rules,
    table_rules,
    written_experts,
)
from blockyard.weights.convert.rotary import declared_rotary, yarn_gain
from blockyard.weights.convert.rules import ConversionRule, mapped, modules, permuted, same, stacked
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

OURS, THEIRS = "blocks.{n}.token_mixer", "model.layers.{n}.self_attn"
MLP = "model.layers.{n}.mlp"
NO_BITS = "weights of fewer bits are not read"


def read(settings: LibrarySettings) -> Foreign:
    """DeepSeek V3's config as overrides."""
    settings.must("quantization_config", None, why=NO_BITS)
    settings.must("attention_bias", False)
    settings.must("moe_layer_freq", 1)
    settings.must("topk_method", "noaux_tc")
    settings.must("scoring_func", "sigmoid")
    for unread in ("num_mtp_layers", "num_nextn_predict_layers", "ep_size", "qk_head_dim", "aux_loss_alpha", "seq_aux"):
        settings.take(unread, None)
    rope = declared_rotary(settings)
    sizes = DecoderSizes(settings)
    if sizes.kv_heads != sizes.heads:
        settings.problems.append(f"num_key_value_heads={sizes.kv_heads}: expected {sizes.heads}, that of the queries")
    key, rotated = settings.integer("qk_nope_head_dim", 128), settings.integer("qk_rope_head_dim", 64)
    if rotated % 2:
        raise UserError(f"{settings.name}: qk_rope_head_dim={rotated}: expected an even number of channels")
    value, rank = settings.integer("v_head_dim", 128), settings.integer("kv_lora_rank", 512)
    query_rank = settings.optional_integer("q_lora_rank", 1536)
    scale = "null"
    if rope.get("rope_type", rope.get("type", "default")) != "default" and rope.get("mscale_all_dim"):
        where = f"{settings.name}: rope_parameters"
        factor, gain = (real_number(where, each, rope.get(each)) for each in ("factor", "mscale_all_dim"))
        scale = repr((key + rotated) ** -0.5 * yarn_gain(factor, gain) ** 2)
    sizes.attention = [
        *(f"token_mixer.rank={rank}", f"token_mixer.query_rank={query_rank or 'null'}"),
        *(f"token_mixer.key_dim={key}", f"token_mixer.rotated_dim={rotated}", f"token_mixer.value_dim={value}"),
        f"token_mixer.score_scale={scale}",
    ]
    dense = settings.integer("first_k_dense_replace", 3, least=0, is_dimension=False)
    if dense >= sizes.depth:
        raise UserError(f"{settings.name}: first_k_dense_replace={dense}: no layer of {sizes.depth} has experts")
    name = "num_local_experts" if "num_local_experts" in settings.values else "n_routed_experts"
    count, hidden = settings.integer(name, 256, is_dimension=False), settings.integer("moe_intermediate_size", 2048)
    number = settings.integer("n_shared_experts", 1, is_dimension=False)
    is_tied = settings.is_tied(False)
    normalise = settings.flag("norm_topk_prob", True)
    overrides = [
        *experts(settings, sizes, count, "moe_intermediate_size", normalise=normalise),
        *(f"channel_mixer.shared={number}", "channel_mixer.balance=bias"),
        f"channel_mixer.num_groups={settings.integer('n_group', 8, is_dimension=False)}",
        f"channel_mixer.active_groups={settings.integer('topk_group', 4, is_dimension=False)}",
        f"channel_mixer.scale={settings.number('routed_scaling_factor', 2.5)!r}",
        *(sizes.eps(1e-6), f"head.tied={boolean(is_tied)}"),
    ]
    pairs = settings.flag("rope_interleave", True)
    rules = [
        *_attention_rules(sizes.heads, key, rotated, value, rank, query_rank, pairs=pairs),
        *(*modules(NORMS), *table_rules(is_tied)),
    ]
    routed = [
        *expert_rules(count, hidden, "model.layers.{n}.mlp"),
        *shared_expert_rules(number, hidden, "model.layers.{n}.mlp.shared_experts"),
    ]
    routed.append(same("blocks.{n}.channel_mixer.offset", "model.layers.{n}.mlp.gate.e_score_correction_bias"))
    mixer = ("channel_mixer=glu", *sizes.gated())
    for layer in range(sizes.depth):
        rules += [rule.named(n=layer) for rule in (gated_rules(sizes.hidden) if layer < dense else routed)]
    layers = [LayerFacts(dense=mixer if layer < dense else ()) for layer in range(sizes.depth)]
    return sizes.foreign(overrides, rules, layers, ignored=(f"model.layers.{sizes.depth}.",))


def _attention_rules(
    heads: int, key: int, rotated: int, value: int, rank: int, query_rank: int | None, *, pairs: bool
) -> list[ConversionRule]:
    """Of latent attention. pairs: their rotation swaps neighbouring channels."""
    order = torch.arange(rotated).view(-1, 2).T.flatten() if pairs else torch.arange(rotated)
    of_keys = torch.cat([torch.arange(rank), rank + order])
    of_head = torch.cat([torch.arange(key), key + order])
    of_queries = torch.cat([head * (key + rotated) + of_head for head in range(heads)])
    both = torch.arange(heads * (key + value)).view(heads, -1)
    of_latent = torch.cat([both[:, :key].flatten(), both[:, key:].flatten()])  # all keys, then all values
    queries, joined = heads * (key + rotated), rank + rotated
    names = [f"{THEIRS}.q_proj.weight", f"{THEIRS}.kv_a_proj_with_mqa.weight"]
    maps = [permuted(of_queries), permuted(of_keys)]
    rules = modules({f"{OURS}.proj_out": f"{THEIRS}.o_proj", f"{OURS}.latent_norm": f"{THEIRS}.kv_a_layernorm"})
    if query_rank is not None:
        names[0], maps[0], queries = f"{THEIRS}.q_a_proj.weight", permuted(torch.arange(query_rank)), query_rank
        rules += modules({f"{OURS}.query_norm": f"{THEIRS}.q_a_layernorm"})
        rules.append(mapped(f"{OURS}.proj_query.weight", f"{THEIRS}.q_b_proj.weight", *permuted(of_queries)))
    return [
        *rules,
        stacked(f"{OURS}.proj_in.weight", names, [queries, joined], maps),
        mapped(f"{OURS}.proj_latent.weight", f"{THEIRS}.kv_b_proj.weight", *permuted(of_latent)),
    ]


def write(run: Trained) -> LibraryConfig:
    """DeepSeek V3's config of a model of ours. Raises UserError where its first layers alone cannot be dense."""
    dense, mixer, of_experts = written_experts(run)
    if dense != list(range(len(dense))):
        raise UserError("layers without channel_mixer=experts must be the first ones")
    config = {key: value for key, value in shared(run).items() if key != "head_dim"} | of_experts
    attention = run.layers[0]["token_mixer"]
    latent = run.shape("blocks.0.token_mixer.proj_latent.weight")
    value = run.shape("blocks.0.token_mixer.proj_out.weight")[1] // run.ctx.heads
    key = latent[0] // run.ctx.heads - value
    rotated = run.shape("blocks.0.token_mixer.proj_in.weight")[0] - latent[1]
    query = run.shape("blocks.0.token_mixer.query_norm.weight")
    rotated = rotated - query[0] if query else (rotated - run.ctx.heads * key) // (run.ctx.heads + 1)
    rope = {**config["rope_parameters"], **_scaled(attention.get("score_scale"), key + rotated, config)}
    return config | {
        "rope_parameters": rope,
        "rope_interleave": True,
        "q_lora_rank": query[0] if query else None,
        "kv_lora_rank": latent[1],
        "qk_nope_head_dim": key,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
        "n_routed_experts": mixer["count"],
        "n_shared_experts": mixer.get("shared") or 0,
        "n_group": mixer.get("num_groups") or 1,
        "topk_group": mixer.get("active_groups") or 1,
        "routed_scaling_factor": float(mixer.get("scale") or 1.0),
        "first_k_dense_replace": len(dense),
        "num_nextn_predict_layers": 0,
        "attention_bias": False,
    }


def _scaled(scale: float | None, width: int, config: LibraryConfig) -> LibraryConfig:
    """What says a factor on the scores other than 1 / sqrt(width). Raises UserError where nothing does."""
    gain = 1.0 if scale is None else math.sqrt(scale * math.sqrt(width))
    factor = config["rope_parameters"].get("factor", 1.0)
    if math.isclose(gain, 1.0, rel_tol=1e-9):
        return {}
    if config["rope_parameters"]["rope_type"] != "yarn" or gain < 1 or factor <= 1:
        raise UserError(f"token_mixer.score_scale={scale}: only position.scaling=yarn can have another than the usual")
    return {"mscale_all_dim": (gain - 1) / (0.1 * math.log(factor))}


# What the shapes of the weights say.
SIZES = frozenset(f"token_mixer.{each}" for each in ("rank", "query_rank", "key_dim", "rotated_dim", "value_dim"))
CONVERTER = Converter(
    "deepseek_v3",
    "transformers",
    "DeepseekV3ForCausalLM",
    read,
    write,
    model_type="deepseek_v3",
    uncompared=(UNCOMPARED_OF_EXPERTS | SIZES | {"token_mixer.absorbed"}) - {"channel_mixer.balance"},
)
