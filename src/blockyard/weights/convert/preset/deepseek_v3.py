"""DeepSeek V3: latent attention, and experts in groups beside a shared one in all but the first layers.

The library's rotation pairs neighbouring channels, ours pairs channel i with channel i + half. The library stores the
shared experts as one wide expert. Modules that predict several tokens ahead are left out: the next token ignores them.

Reference: transformers DeepseekV3ForCausalLM
"""

from __future__ import annotations

import math

import torch

from blockyard.config.override_grammar import to_override
from blockyard.errors import UserError
from blockyard.weights.convert import keys
from blockyard.weights.convert import llama_family as llama
from blockyard.weights.convert.converter import Trained
from blockyard.weights.convert.declared_sizes import real_number
from blockyard.weights.convert.rotary import declared_rotary, rotary, written_rotary, yarn_gain
from blockyard.weights.convert.rules import ConversionRule, block_modules, mapped, modules, permuted, same, stacked
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

MIXER, ATTENTION = "blocks.{n}.token_mixer", "model.layers.{n}.self_attn"
MLP = "model.layers.{n}.mlp"
# Options that follow from the shapes of the weights.
SIZES = frozenset(f"token_mixer.{each}" for each in ("rank", "query_rank", "key_dim", "rotated_dim", "value_dim"))


def _read_heads(settings: LibrarySettings, values: keys.Values) -> None:
    """Check the heads of keys and values. In the library, `head_dim` is the number of rotated channels."""
    heads = values["model.heads"]
    kv_heads = settings.optional_integer("num_key_value_heads") or heads
    settings.optional_integer("head_dim")
    if kv_heads != heads:
        settings.problems.append(f"num_key_value_heads={kv_heads}: expected {heads}, that of the queries")


def _read_attention(settings: LibrarySettings, values: keys.Values) -> list[str]:
    """Read rotary positions and latent attention."""
    rope, overrides = declared_rotary(settings), rotary(settings)
    key, rotated = settings.integer("qk_nope_head_dim", 128), settings.integer("qk_rope_head_dim", 64)
    if rotated % 2:
        raise UserError(f"{settings.name}: qk_rope_head_dim={rotated}: expected an even number of channels")
    value, rank = settings.integer("v_head_dim", 128), settings.integer("kv_lora_rank", 512)
    query_rank = settings.optional_integer("q_lora_rank", 1536)
    scale = None
    if rope.get("rope_type", rope.get("type", "default")) != "default" and rope.get("mscale_all_dim"):
        where = f"{settings.name}: rope_parameters"
        factor, gain = (real_number(where, name, rope.get(name)) for name in ("factor", "mscale_all_dim"))
        scale = (key + rotated) ** -0.5 * yarn_gain(factor, gain) ** 2
    sizes = {"key_dim": key, "rotated_dim": rotated, "value_dim": value, "rank": rank, "query_rank": query_rank}
    values |= {"attention": sizes, "pairs": settings.flag("rope_interleave", True)}
    options = sizes | {"score_scale": scale}
    return overrides + [to_override(f"token_mixer.{option}", value) for option, value in options.items()]


def _written_attention(run: Trained) -> LibraryConfig:
    """Return the keys of positions and attention; the sizes follow from the shapes of the weights."""
    heads, rope = run.ctx.heads, written_rotary(run)
    latent = run.shape("blocks.0.token_mixer.proj_latent.weight")
    value = run.shape("blocks.0.token_mixer.proj_out.weight")[1] // heads
    key = latent[0] // heads - value
    # The outputs of the first map: queries or their latent, the latent of keys and values, and one rotated key.
    rotated = run.shape("blocks.0.token_mixer.proj_in.weight")[0] - latent[1]
    query = run.shape("blocks.0.token_mixer.query_norm.weight")
    if query:
        rotated -= query[0]
    else:  # the first map has the queries of all heads, each with rotated channels, and one rotated key
        rotated = (rotated - heads * key) // (heads + 1)
    scale = run.layers[0]["token_mixer"].get("score_scale")
    return {
        "num_key_value_heads": heads,
        "rope_parameters": rope | _scaled(scale, key + rotated, rope),
        "rope_interleave": True,
        "q_lora_rank": query[0] if query else None,
        "kv_lora_rank": latent[1],
        "qk_nope_head_dim": key,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
    }


def _read_layers(settings: LibrarySettings, values: keys.Values) -> list[llama.LayerFacts]:
    """Read the number of first layers without experts. Modules behind the last layer are skipped."""
    depth, dense = values["model.depth"], settings.integer("first_k_dense_replace", 3, least=0, is_dimension=False)
    if dense >= depth:
        raise UserError(f"{settings.name}: first_k_dense_replace={dense}: no layer of {depth} has experts")
    values["skipped"] = (f"model.layers.{depth}.",)
    return llama.dense_facts(settings, values, [layer < dense for layer in range(depth)])


def _written_experts(run: Trained) -> LibraryConfig:
    config = llama.written_experts(run, "n_routed_experts")
    dense = config["mlp_only_layers"]
    if dense != list(range(len(dense))):
        raise UserError("layers without channel_mixer=experts must be the first ones")
    of_qwen = ("mlp_only_layers", "decoder_sparse_step", "router_aux_loss_coef")
    return {name: value for name, value in config.items() if name not in of_qwen} | {
        "first_k_dense_replace": len(dense),
    }


def _routed(option: str, usual: float) -> keys.Write:
    """Return the writer of an option of the last layer's experts; the usual value if the option is null."""
    return lambda run: run.layers[-1]["channel_mixer"].get(option) or usual


def _rules(values: keys.Values) -> list[ConversionRule]:
    routed = llama.expert_rules(values["experts"])
    routed += llama.shared_expert_rules(
        values["channel_mixer.shared"], values["expert_hidden"], f"{MLP}.shared_experts"
    )
    routed.append(same("blocks.{n}.channel_mixer.offset", f"{MLP}.gate.e_score_correction_bias"))
    return [
        *_attention_rules(values["model.heads"], *values["attention"].values(), pairs=values["pairs"]),
        *(*modules(llama.NORMS), *llama.table_rules(values)),
        *llama.rules_of_layers(values["dense"], llama.gated_rules(), routed),
    ]


def _attention_rules(
    heads: int, key: int, rotated: int, value: int, rank: int, query_rank: int | None, *, pairs: bool
) -> list[ConversionRule]:
    """Return the rules of latent attention. pairs: the library rotates pairs of neighbouring channels"""
    order = torch.arange(rotated)
    if pairs:  # 0 1 2 3 -> 0 2 1 3: the first of each pair into one half, the second into the other
        order = order.view(-1, 2).T.flatten()
    of_keys = torch.cat([torch.arange(rank), rank + order])
    of_head = torch.cat([torch.arange(key), key + order])
    of_queries = torch.cat([head * (key + rotated) + of_head for head in range(heads)])
    both = torch.arange(heads * (key + value)).view(heads, -1)
    of_latent = torch.cat([both[:, :key].flatten(), both[:, key:].flatten()])  # all keys, then all values
    queries, joined = heads * (key + rotated), rank + rotated
    names = [f"{ATTENTION}.q_proj.weight", f"{ATTENTION}.kv_a_proj_with_mqa.weight"]
    maps = [permuted(of_queries), permuted(of_keys)]
    rules = block_modules({"proj_out": "o_proj", "latent_norm": "kv_a_layernorm"}, ATTENTION, model_block=MIXER)
    if query_rank is not None:
        names[0], maps[0], queries = f"{ATTENTION}.q_a_proj.weight", permuted(torch.arange(query_rank)), query_rank
        rules += modules({f"{MIXER}.query_norm": f"{ATTENTION}.q_a_layernorm"})
        rules.append(mapped(f"{MIXER}.proj_query.weight", f"{ATTENTION}.q_b_proj.weight", *permuted(of_queries)))
    return [
        *rules,
        stacked(f"{MIXER}.proj_in.weight", names, maps, [queries, joined]),
        mapped(f"{MIXER}.proj_latent.weight", f"{ATTENTION}.kv_b_proj.weight", *permuted(of_latent)),
    ]


def _scaled(scale: float | None, width: int, rope: LibraryConfig) -> LibraryConfig:
    """Return the keys of a factor on the scores other than 1 / sqrt(width). Raises UserError if no key can say it."""
    gain = 1.0 if scale is None else math.sqrt(scale * math.sqrt(width))
    factor = rope.get("factor", 1.0)
    if math.isclose(gain, 1.0, rel_tol=1e-9):
        return {}
    if rope["rope_type"] != "yarn" or gain < 1 or factor <= 1:
        raise UserError(f"token_mixer.score_scale={scale}: only position.scaling=yarn can have another than the usual")
    return {"mscale_all_dim": (gain - 1) / (0.1 * math.log(factor))}


CONVERTER = llama.decoder(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    [
        *(
            *llama.sizes(keys.Key(_read_heads)),
            keys.Key(_read_attention, _written_attention),
            llama.eps(1e-6),
            keys.tied(False),
        ),
        llama.experts(
            "n_routed_experts",
            "moe_intermediate_size",
            alias="num_local_experts",
            count=256,
            normalise=True,
            write=_written_experts,
        ),
        keys.whole("n_shared_experts", "channel_mixer.shared", 1, _routed("shared", 0), is_dimension=False),
        keys.whole("n_group", "channel_mixer.num_groups", 8, _routed("num_groups", 1), is_dimension=False),
        keys.whole("topk_group", "channel_mixer.active_groups", 4, _routed("active_groups", 1), is_dimension=False),
        keys.number("routed_scaling_factor", "channel_mixer.scale", 2.5, _routed("scale", 1.0)),
        keys.option("channel_mixer.balance", "bias"),
        llama.layers(_read_layers),
        keys.fixed("quantization_config", None, why="weights of fewer bits are not read"),
        keys.stated("attention_bias", False),
        keys.fixed("moe_layer_freq", 1),
        keys.fixed("topk_method", "noaux_tc"),
        keys.fixed("scoring_func", "sigmoid"),
        keys.ignored("num_mtp_layers num_nextn_predict_layers ep_size qk_head_dim aux_loss_alpha seq_aux"),
        keys.written(num_nextn_predict_layers=0),
    ],
    _rules,
    uncompared=(llama.UNCOMPARED_OF_EXPERTS | SIZES | {"token_mixer.absorbed"}) - {"channel_mixer.balance"},
)
