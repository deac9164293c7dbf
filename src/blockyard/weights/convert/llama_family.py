"""Shared by the decoders of Llama's family: keys of their configs, layers of two kinds, and rules of their weights.

    Llama            every converter of the family has the keys of `sizes`
      Mistral        a window in every layer
      Qwen3          norms of queries and keys, windows in some layers
      SmolLM3        layers without positions, windows in some layers
      Mixtral        experts in every layer
      gpt-oss        experts in every layer, sinks, windows in every second layer
      Qwen3-MoE      norms of queries and keys, experts in some layers
      DeepSeek V3    latent attention, experts in groups in all but the first layers
      Qwen3-Next     gated attention in every fourth layer, Gated DeltaNet in the others, experts
      OLMo 2         norms after the branches, of queries and keys over all heads
      ModernBERT     an encoder with norms of the embeddings, windows and another base of rotation in most layers
      Gemma 2        norms before and after the branches, soft caps, windows in every second layer
      Gemma 3        norms before and after the branches, windows and another base of rotation in most layers
      Command-R      parallel blocks (preset palm)

Layers that differ are kinds of `layers`: `near` has a window, `free` no positions, `near_free` both, `dense` no
experts, `raw` no norm in front of attention, `recurrent` another mixer in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockyard.config.override_grammar import to_override
from blockyard.contracts import BASE_KIND, DataSpec
from blockyard.errors import UserError, quoted
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import Converter, Trained
from blockyard.weights.convert.rotary import (
    FULL,
    SLIDING,
    rotary,
    rotations,
    window_base,
    written_rotary,
    written_rotations,
)
from blockyard.weights.convert.rules import (
    BothWays,
    ConversionRule,
    modules,
    same,
    stacked_modules,
    table_and_head,
)
from blockyard.weights.convert.settings import ABSENT, LibraryConfig, LibrarySettings, inverse

QK_EPS = 1e-6  # of our norms of queries and keys
CONTEXT = 4096  # tokens of a run of an imported model; its rotary positions have no limit of their own
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
# Positions of layers that are not scaled although other layers are: an option without an effect would be refused.
UNSCALED = tuple(
    f"position.{option}" for option in ("scaling=none", "factor=1", "original=null", "gain=null", "truncate=true")
)
# Model name -> library name.
NORMS = {
    "blocks.{n}.token_norm": "model.layers.{n}.input_layernorm",
    "blocks.{n}.channel_norm": "model.layers.{n}.post_attention_layernorm",
}
# Gemma has norms before and after the branches.
FOUR_NORMS = {
    "blocks.{n}.token_norm": "model.layers.{n}.input_layernorm",
    "blocks.{n}.token_finish": "model.layers.{n}.post_attention_layernorm",
    "blocks.{n}.channel_norm": "model.layers.{n}.pre_feedforward_layernorm",
    "blocks.{n}.channel_finish": "model.layers.{n}.post_feedforward_layernorm",
}
GATED_NAMES = ("gate_proj", "up_proj", "down_proj")  # of the gate, the value and the map of their product
QK_NORMS = {
    "blocks.{n}.token_mixer.q_norm": "model.layers.{n}.self_attn.q_norm",
    "blocks.{n}.token_mixer.k_norm": "model.layers.{n}.self_attn.k_norm",
}


# Options of experts that only affect training, so that a library's config does not say them.
UNCOMPARED_OF_EXPERTS = frozenset(
    f"channel_mixer.{name}" for name in ("balance", "weight", "bias_rate", "z_loss", "capacity")
)
ATTENTION_BIAS = keys.flag("attention_bias", "token_mixer.bias", False)
MLP_BIAS = keys.flag("mlp_bias", "channel_mixer.bias", False)


@dataclass(frozen=True)
class LayerFacts:
    """The differences of a layer from the layer that the config describes.

    window: number of tokens that it sees; rotated: whether it has positions; base: of its rotation
    normed: whether its attention reads a normalised stream
    dense: overrides of its channel mixer if other layers have experts
    recurrent: overrides of its token mixer if other layers have attention
    """

    window: int | None = None
    rotated: bool = True
    base: float | None = None
    normed: bool = True
    dense: tuple[str, ...] = ()
    recurrent: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the layer's kind."""
        parts = {
            "recurrent": bool(self.recurrent),
            "near": self.window is not None,
            "free": not self.rotated,
            "raw": not self.normed,
            "dense": bool(self.dense),
        }
        return "_".join(part for part, has in parts.items() if has) or BASE_KIND

    def overrides(self, attention: Sequence[str]) -> list[str]:
        """Return the overrides of the layer's kind. attention: options of the config's attention, kept with a window"""
        overrides = [*self.recurrent, *self.dense]
        if self.window is not None:
            overrides += ["token_mixer=windowed_attention", f"token_mixer.window={self.window}", *attention]
        if not self.normed:
            overrides.append("block.norm_tokens=false")
        if self.base is not None:
            overrides += [f"position.base={self.base!r}", *UNSCALED]
        if self.rotated:
            return overrides
        return [*overrides, "position=none"]


def heads(prefix: str = "token_mixer") -> keys.Key:
    """Return the keys of the heads of keys and values, and of the width of a head. prefix: of the options"""

    def read(settings: LibrarySettings, values: keys.Values) -> list[str]:
        dim, heads = values["model.dim"], values["model.heads"]
        kv_heads = settings.optional_integer("num_key_value_heads") or heads
        width = settings.optional_integer("head_dim") or dim // heads
        values |= {"kv_heads": kv_heads, "head_dim": width}
        options = {f"{prefix}.num_kv_heads": kv_heads}
        if width * heads != dim:
            options |= {f"{prefix}.key_dim": width, f"{prefix}.value_dim": width}
        values |= options
        return [to_override(option, value) for option, value in options.items()]

    def write(run: Trained) -> LibraryConfig:
        return {
            "num_key_value_heads": run.option(f"{prefix}.num_kv_heads") or run.ctx.heads,
            "head_dim": run.option(f"{prefix}.key_dim") or run.ctx.dim // run.ctx.heads,
        }

    return keys.Key(read, write)


HEADS = heads()


def sizes(heads: keys.Key = HEADS, *, activation: str = "hidden_act", usual: str = "silu") -> list[keys.Key]:
    """Return the keys of the family.

    activation: the key of the activation; usual: the activation of a config that names none
    """

    def read_activation(settings: LibrarySettings, _: keys.Values) -> str:
        return settings.one_of(activation, ACTIVATIONS, usual)

    return [
        keys.whole("hidden_size", "model.dim"),
        keys.whole("num_hidden_layers", "model.depth"),
        keys.whole("num_attention_heads", "model.heads"),
        heads,
        keys.whole("intermediate_size", "hidden", write=lambda run: run.hidden),
        keys.vocabulary(),
        keys.positions("max_position_embeddings", 2048, is_dimension=False),
        keys.key(activation, "activation", read_activation, _written_activation),
        keys.SPECIAL_TOKENS,
        keys.written(pad_token_id=None),
    ]


def _written_activation(run: Trained) -> str:
    mixer = run.layers[0]["channel_mixer"]
    members = mixer.get("members") or {}  # of a channel mixer of several, such as experts
    first: Mapping[str, Any] = next(iter(members.values()), {})
    return inverse(ACTIVATIONS).get(str(mixer.get("activation") or first.get("activation")), "silu")


def positions(theta: float = 10000.0, share: float | None = None) -> keys.Key:
    """Return the key of rotary positions.

    theta: the base of a config that has none
    share: of the channels that rotate, in a config that does not say so; None if all must rotate
    """

    def write(run: Trained) -> LibraryConfig:
        rope = written_rotary(run)
        if share is not None:
            rope["partial_rotary_factor"] = float(run.option("position.fraction") or 1.0)
        return {"rope_parameters": rope}

    return keys.Key(lambda settings, _: rotary(settings, None, share, theta=theta), write)


def positions_of_types(full: tuple[str, float], near: tuple[str, float]) -> keys.Key:
    """Return the key of rotary positions with another base, the value `near_base`, in layers with a window.

    full, near: the keys of the bases in older files, and their defaults
    """

    def read(settings: LibrarySettings, values: keys.Values) -> list[str]:
        of_types = rotations(settings, full, near)
        values["near_base"] = window_base(settings, of_types[SLIDING])
        return rotary(settings, of_types[FULL])

    return keys.Key(read, lambda run: {"rope_parameters": written_rotations(run)})


def gated(
    settings: LibrarySettings, values: keys.Values, name: str = "intermediate_size", prefix: str = "channel_mixer"
) -> list[str]:
    """Return the overrides of a gated channel mixer. name: the key of its hidden width"""
    hidden = settings.integer(name)
    if hidden % 8:
        settings.problems.append(f"{name}={hidden}: expected a multiple of 8")
    options = {"expansion": hidden / values["model.dim"], "activation": values["activation"]}
    return [to_override(f"{prefix}.{option}", value) for option, value in options.items()]


def normed_eps(default: float) -> keys.Key:
    """Return the key of the norms' epsilon in models that also normalise queries and keys, with a fixed epsilon."""

    def take(settings: LibrarySettings, _: keys.Values) -> float:
        eps = settings.number("rms_norm_eps", default)
        if eps != QK_EPS:
            settings.problems.append(f"rms_norm_eps={eps}: expected {QK_EPS}, that of our norms of queries and keys")
        return eps

    return keys.key("rms_norm_eps", "norm.eps", take, lambda run: run.option("norm.eps"))


def eps(default: float) -> keys.Key:
    """Return the key of the norms' epsilon."""
    return keys.number("rms_norm_eps", "norm.eps", default)


GATED = keys.Key(gated)


def window(settings: LibrarySettings, default: int | None, *, has_switch: bool = False) -> int | None:
    """Return the number of tokens that a layer with a window sees; None if no layer has a window.

    default: of a config without the key; has_switch: the class has windows only if `use_sliding_window` says so
    """
    if not has_switch:
        settings.must("use_sliding_window", True, why="the class does not read it")
    elif not settings.flag("use_sliding_window", False):
        settings.take("sliding_window", None)
        return None
    return settings.optional_integer("sliding_window", default, is_dimension=False)


def layer_types(
    settings: LibrarySettings, values: keys.Values, default: Callable[[int], bool], other: str = SLIDING
) -> list[bool]:
    """Return for each layer whether it is of the type `other`, and does not attend to all tokens.

    default: the answer for a layer if a config names no types. Raises UserError for anything else.
    """
    depth, types = values["model.depth"], settings.take("layer_types", None)
    if types is None:
        return [default(layer) for layer in range(depth)]
    valid = isinstance(types, list | tuple) and all(kind in (other, FULL) for kind in types)
    if not valid or len(types) != depth:
        raise UserError(
            f"{settings.name}: layer_types={quoted(types)}: expected {other} or {FULL} for each of the {depth} layers"
        )
    return [kind == other for kind in types]


def written_types(run: Trained) -> LibraryConfig:
    """Return the keys of windows in some layers. Of several widths only the first is written, and read back."""
    windows = [layer["token_mixer"].get("window") for layer in run.layers]
    used = [window for window in windows if window is not None]
    return {
        "layer_types": [FULL if window is None else SLIDING for window in windows],
        "sliding_window": used[0] if used else None,
    }


def switched_types(run: Trained) -> LibraryConfig:
    """Return the same keys and `use_sliding_window`: whether a layer has a window."""
    config = written_types(run)
    return config | {"use_sliding_window": config["sliding_window"] is not None}


def layers(
    facts: Callable[[LibrarySettings, keys.Values], Sequence[LayerFacts]],
    write: Callable[[Trained], LibraryConfig] | None = None,
) -> keys.Key:
    """Return the keys of layers that differ. They come after the keys of attention: a window keeps its options."""

    def read(settings: LibrarySettings, values: keys.Values) -> list[str]:
        attention = [
            to_override(option, value) for option, value in values.items() if option.startswith("token_mixer.")
        ]
        return of_layers(facts(settings, values), attention)

    return keys.Key(read, write)


def near_layers(period: int, tokens: int, name: str = "") -> keys.Key:
    """Return the keys of layers, some with a window, and another base of positions if there is one.

    period: of so many layers the last has no window, if a config names neither the layers nor, as `name`, a period
    tokens: the width of the window in a config that does not say it
    """

    def read(settings: LibrarySettings, values: keys.Values) -> list[LayerFacts]:
        every = period
        if name:
            every = settings.integer(name, period, is_dimension=False)
        types = layer_types(settings, values, lambda layer: (layer + 1) % every != 0)
        near = LayerFacts(window(settings, tokens), base=values.get("near_base"))
        return [near if is_near else LayerFacts() for is_near in types]

    return layers(read, written_types)


def of_layers(layers: Sequence[LayerFacts], attention: Sequence[str]) -> list[str]:
    """Return the overrides of `layers`; none if all are as the config says."""
    kinds = {layer.name: layer.overrides(attention) for layer in layers if layer.name != BASE_KIND}
    if not kinds:
        return []
    names = [layer.name for layer in layers]
    # The shortest pattern that repeats: preset configs say it so, and an export is compared with them.
    period = next(p for p in range(1, len(names) + 1) if names == (names[:p] * len(names))[: len(names)])
    pattern = f"layers.pattern=[{','.join(names[:period])}]"
    return [pattern, *(f"layers.kinds.{name}=[{','.join(overrides)}]" for name, overrides in kinds.items())]


def decoder(
    preset: str,
    architecture: str,
    table: Sequence[keys.Key],
    rules: Callable[[keys.Values], Iterable[ConversionRule]],
    skipped: tuple[str, ...] = (),
    **options: Any,
) -> Converter:
    """Return a converter of the family. skipped: beginnings of names that are not read; the rest as for `declared`"""
    return keys.declared(
        preset,
        architecture,
        [keys.overrides("layers=same"), *table],
        rules,
        lambda values: DataSpec("text", (min(values["positions"], CONTEXT),)),
        skipped=lambda name: name.endswith("rotary_emb.inv_freq") or name.startswith(skipped),
        **options,
    )


def attention_rules(values: keys.Values, maps: Sequence[BothWays] = ()) -> list[ConversionRule]:
    """Return the rules of the projections of attention. maps: of queries, keys and values"""
    layer, head = "model.layers.{n}.self_attn", values["head_dim"]
    widths = [values["model.heads"] * head, *[values["kv_heads"] * head] * 2]
    names = [f"{layer}.{part}_proj" for part in "qkv"]
    rules = stacked_modules("blocks.{n}.token_mixer.proj_in", names, maps, widths)
    return rules + modules({"blocks.{n}.token_mixer.proj_out": f"{layer}.o_proj"})


def gated_rules(
    mixer: str = "blocks.{n}.channel_mixer",
    library_mixer: str = "model.layers.{n}.mlp",
    names: tuple[str, str, str] = GATED_NAMES,
) -> list[ConversionRule]:
    """Return the rules of a gated channel mixer. names: of the gate, the value and the map of their product"""
    gate, value, down = names
    rules = stacked_modules(f"{mixer}.proj_in", [f"{library_mixer}.{gate}", f"{library_mixer}.{value}"])
    return rules + modules({f"{mixer}.proj_out": f"{library_mixer}.{down}"})


def expert_rules(
    count: int,
    library_mixer: str = "model.layers.{n}.mlp",
    names: tuple[str, str, str] = GATED_NAMES,
) -> list[ConversionRule]:
    """Return the rules of a router and its gated experts. names: as for `gated_rules`"""
    mixer = "blocks.{n}.channel_mixer"
    rules = [same(f"{mixer}.router.weight", f"{library_mixer}.gate.weight")]
    for number in range(count):
        rules += gated_rules(f"{mixer}.expert.{number}", f"{library_mixer}.experts.{number}", names)
    return rules


def shared_expert_rules(count: int, hidden: int, library_expert: str) -> list[ConversionRule]:
    """Return the rules of shared experts, which the library stores as one wide expert. hidden: the width of each"""
    experts = [f"blocks.{{n}}.channel_mixer.shared.{e}" for e in range(count)]

    def apart(wide: Sequence[Tensor]) -> Sequence[Tensor]:
        gates, values = (weight.split(hidden) for weight in wide)
        return [torch.cat(pair) for pair in zip(gates, values, strict=True)]

    def join(weights: Sequence[Tensor]) -> Sequence[Tensor]:
        gates, values = zip(*(weight.chunk(2) for weight in weights), strict=True)
        return [torch.cat(gates), torch.cat(values)]

    return [
        ConversionRule(
            tuple(f"{expert}.proj_in.weight" for expert in experts),
            (f"{library_expert}.gate_proj.weight", f"{library_expert}.up_proj.weight"),
            apart,
            join,
        ),
        ConversionRule(
            tuple(f"{expert}.proj_out.weight" for expert in experts),
            (f"{library_expert}.down_proj.weight",),
            lambda wide: wide[0].split(hidden, dim=1),
            lambda weights: [torch.cat([*weights], 1)],
        ),
    ]


def table_rules(values: keys.Values) -> list[ConversionRule]:
    """Return the rules of the table, the final norm and the head."""
    tables = table_and_head("model.embed_tokens.weight", is_tied=values["head.tied"])
    return [*tables, same("final_norm.weight", "model.norm.weight")]


def llama_rules(values: keys.Values) -> list[ConversionRule]:
    """Return Llama's rules but for the norms of blocks: attention, gated channel mixer, table, final norm and head."""
    return [*attention_rules(values), *gated_rules(), *table_rules(values)]


def rules_of_layers(
    dense: Sequence[bool], plain: Sequence[ConversionRule], routed: Sequence[ConversionRule]
) -> list[ConversionRule]:
    """Return `plain` for each layer without experts, and `routed` for the others."""
    rules = []
    for layer, is_dense in enumerate(dense):
        rules += [rule.named(n=layer) for rule in (plain if is_dense else routed)]
    return rules


def read_dense_layers(settings: LibrarySettings, values: keys.Values) -> list[LayerFacts]:
    """Read the layers without experts. Raises UserError for a list of anything else than layers."""
    depth = values["model.depth"]
    every = settings.integer("decoder_sparse_step", 1, is_dimension=False)
    named = settings.take("mlp_only_layers", [])
    if named is None:
        named = []
    if not isinstance(named, list) or not all(isinstance(n, int) and 0 <= n < depth for n in named):
        raise UserError(f"{settings.name}: mlp_only_layers={quoted(named)}: expected numbers of the {depth} layers")
    return dense_facts(settings, values, [layer in named or bool((layer + 1) % every) for layer in range(depth)])


def experts(
    name: str,
    width: str = "intermediate_size",
    *,
    alias: str = "",
    count: Any = ABSENT,
    normalise: bool | None = None,
    write: Callable[[Trained], LibraryConfig] | None = None,
) -> keys.Key:
    """Return the keys of gated experts that a softmax chooses. Their number and hidden width become values.

    name: the key of their number, alias: another one; width: the key of their hidden width; count: the default
    normalise: the default of the key that normalises the weights of the chosen experts; None if the class always does
    write: the writer of a class that has layers without experts
    """

    def read(settings: LibrarySettings, values: keys.Values) -> list[str]:
        settings.taken |= {"router_aux_loss_coef", "output_router_logits"}  # of training, as is the jitter
        settings.must("router_jitter_noise", 0.0)
        number = settings.integer(alias if alias in settings.values else name, count, is_dimension=False)
        is_normalised = normalise is None or settings.flag("norm_topk_prob", normalise)
        active = settings.integer("num_experts_per_tok")
        values |= {"experts": number, "active": active, "expert_hidden": settings.integer(width)}
        options = {"count": number, "active": active, "normalise": is_normalised}
        overrides = [to_override(f"channel_mixer.{option}", value) for option, value in options.items()]
        return overrides + gated(settings, values, width, "channel_mixer.members.glu")

    def write_all(run: Trained) -> LibraryConfig:
        names = {name: "count", "num_experts_per_tok": "active", "router_aux_loss_coef": "weight"}
        return {key: run.option(f"channel_mixer.{option}") for key, option in names.items()}

    return keys.Key(read, write or write_all)


def dense_facts(settings: LibrarySettings, values: keys.Values, dense: Sequence[bool]) -> list[LayerFacts]:
    """Return the facts of layers, some without experts (`dense`, which becomes a value)."""
    values["dense"] = dense
    mixer = ("channel_mixer=glu", *gated(settings, values)) if any(dense) else ()
    return [LayerFacts(dense=mixer if is_dense else ()) for is_dense in dense]


def written_experts(run: Trained, name: str) -> LibraryConfig:
    """Return the keys of experts in some layers. name: the key of their number

    Raises UserError if no layer has experts, or a layer has no channel mixer.
    """
    dense = [layer for layer, nodes in enumerate(run.layers) if "count" not in nodes["channel_mixer"]]
    if len(dense) == run.ctx.depth:
        raise UserError("no layer has channel_mixer=experts")
    shapes = {layer: run.shape(f"blocks.{layer}.channel_mixer.proj_out.weight") for layer in dense}
    for layer, shape in shapes.items():
        if not shape:
            raise UserError(f"layer {layer} has no channel mixer")
    routed = min({*range(run.ctx.depth)} - {*dense})
    mixer = run.layers[routed]["channel_mixer"]
    hidden = run.shape(f"blocks.{routed}.channel_mixer.expert.0.proj_out.weight")[1]
    normalise = mixer.get("normalise")
    return {
        name: mixer["count"],
        "mlp_only_layers": dense,
        "decoder_sparse_step": 1,
        "router_aux_loss_coef": mixer["weight"],
        "intermediate_size": shapes[dense[0]][1] if dense else hidden,
        "moe_intermediate_size": hidden,
        "num_experts_per_tok": mixer["active"],
        "norm_topk_prob": mixer["active"] > 1 if normalise is None else normalise,
    }
