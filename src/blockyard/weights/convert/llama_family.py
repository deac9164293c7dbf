"""What the decoders of Llama's family share in their configs and weights: sizes and layers of two kinds.

    Llama            every converter of the family reads `DecoderSizes` and writes `shared`
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockyard.contracts import BASE_KIND, DataSpec
from blockyard.errors import UserError, quoted
from blockyard.weights.convert.converter import Foreign, Trained, boolean
from blockyard.weights.convert.rotary import FULL, SLIDING, rotary, written_rotary
from blockyard.weights.convert.rules import (
    BothWays,
    ConversionRule,
    modules,
    per_block,
    same,
    stacked_modules,
    table_and_head,
)
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings, inverse

QK_EPS = 1e-6  # of our norms of queries and keys
CONTEXT = 4096  # tokens of a run of an imported model; its rotary positions have no limit of their own
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}
# Positions that are not scaled, where those of other layers are: an option without an effect is refused.
UNSCALED = tuple(
    f"position.{option}" for option in ("scaling=none", "factor=1", "original=null", "gain=null", "truncate=true")
)
# Names of ours -> theirs, in a block.
NORMS = {
    "blocks.{n}.token_norm": "model.layers.{n}.input_layernorm",
    "blocks.{n}.channel_norm": "model.layers.{n}.post_attention_layernorm",
}
# Before and after the branches, of Gemma.
FOUR_NORMS = {
    "blocks.{n}.token_norm": "model.layers.{n}.input_layernorm",
    "blocks.{n}.token_finish": "model.layers.{n}.post_attention_layernorm",
    "blocks.{n}.channel_norm": "model.layers.{n}.pre_feedforward_layernorm",
    "blocks.{n}.channel_finish": "model.layers.{n}.post_feedforward_layernorm",
}
QK_NORMS = {
    "blocks.{n}.token_mixer.q_norm": "model.layers.{n}.self_attn.q_norm",
    "blocks.{n}.token_mixer.k_norm": "model.layers.{n}.self_attn.k_norm",
}


@dataclass(frozen=True)
class LayerFacts:
    """What a layer has that the config's own has not.

    window: tokens that it sees; rotated: whether it has positions; base: that of its rotation
    normed: whether its attention reads a normalised stream
    dense: overrides of its channel mixer, where the others have experts
    recurrent: overrides of its token mixer, where the others have attention
    """

    window: int | None = None
    rotated: bool = True
    base: float | None = None
    normed: bool = True
    dense: tuple[str, ...] = ()
    recurrent: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its kind."""
        parts = {
            "recurrent": bool(self.recurrent),
            "near": self.window is not None,
            "free": not self.rotated,
            "raw": not self.normed,
            "dense": bool(self.dense),
        }
        return "_".join(part for part, has in parts.items() if has) or BASE_KIND

    def overrides(self, attention: Sequence[str]) -> list[str]:
        """Those of its kind. attention: options of the config's own attention, which a window keeps."""
        overrides = [*self.recurrent, *self.dense]
        if self.window is not None:
            overrides += ["token_mixer=windowed_attention", f"token_mixer.window={self.window}", *attention]
        if not self.normed:
            overrides.append("block.norm_tokens=false")
        if self.base is not None:
            overrides += [f"position.base={self.base!r}", *UNSCALED]
        return overrides if self.rotated else [*overrides, "position=none"]


class DecoderSizes:
    """What the configs of the family share.

    attention: options of every attention; mixer: those of the channel mixer
    """

    def __init__(
        self,
        settings: LibrarySettings,
        *,
        activation: tuple[str, str] = ("hidden_act", "silu"),
        theta: float = 10000.0,
        rope: Mapping[str, Any] | None = None,
        share: float | None = None,
    ) -> None:
        """activation: its key, and theirs where a config names none; theta: the base where a config has none.

        rope: the mapping of rotary positions, where it is not that of the config
        share: of the channels that rotate, where a config does not say so; None where all must
        """
        self.settings = settings
        self.dim, self.depth = settings.integer("hidden_size"), settings.integer("num_hidden_layers")
        self.heads = settings.integer("num_attention_heads")
        self.kv_heads = settings.optional_integer("num_key_value_heads") or self.heads
        self.head_dim = settings.optional_integer("head_dim") or self.dim // self.heads
        self.hidden, self.vocabulary = settings.integer("intermediate_size"), settings.integer("vocab_size")
        self.positions = settings.integer("max_position_embeddings", 2048, is_dimension=False)
        self.activation = settings.one_of(activation[0], ACTIVATIONS, activation[1])
        self.attention = [f"token_mixer.num_kv_heads={self.kv_heads}"]
        if self.head_dim * self.heads != self.dim:
            self.attention += [f"token_mixer.key_dim={self.head_dim}", f"token_mixer.value_dim={self.head_dim}"]
        self.overrides = [
            *(f"model.dim={self.dim}", f"model.depth={self.depth}", f"model.heads={self.heads}"),
            *rotary(settings, rope, share, theta=theta),
        ]

    def gated(self, key: str = "intermediate_size", prefix: str = "channel_mixer") -> list[str]:
        """The overrides of a gated channel mixer. key: of its hidden width."""
        hidden = self.settings.integer(key)
        if hidden % 8:
            self.settings.problems.append(f"{key}={hidden}: expected a multiple of 8")
        return [f"{prefix}.expansion={hidden / self.dim!r}", f"{prefix}.activation={self.activation}"]

    def eps(self, default: float) -> str:
        """The override of the norms' epsilon."""
        return f"norm.eps={self.settings.number('rms_norm_eps', default)!r}"

    def normed_eps(self, default: float) -> str:
        """The same where queries and keys are normalised, too, by norms with an epsilon of their own."""
        if (eps := self.settings.number("rms_norm_eps", default)) != QK_EPS:
            self.settings.problems.append(
                f"rms_norm_eps={eps}: expected {QK_EPS}, that of our norms of queries and keys"
            )
        return f"norm.eps={eps!r}"

    def window(self, default: int | None, *, has_switch: bool = False) -> int | None:
        """Tokens that a windowed layer sees; None where no layer has a window.

        default: where a config has no such key; has_switch: whether the class has windows only where a key says so
        """
        if not has_switch:
            self.settings.must("use_sliding_window", True, why="the class does not read it")
        elif not self.settings.flag("use_sliding_window", False):
            self.settings.take("sliding_window", None)
            return None
        return self.settings.optional_integer("sliding_window", default, is_dimension=False)

    def layer_types(self, default: Sequence[str], other: str = SLIDING) -> list[str]:
        """Whether each layer attends to all tokens, or is the other type. Raises UserError for anything else."""
        types = self.settings.take("layer_types", None)
        types = default if types is None else types
        valid = isinstance(types, list | tuple) and not [each for each in types if each not in (other, FULL)]
        if not valid or len(types) != self.depth:
            raise UserError(
                f"{self.settings.name}: layer_types={quoted(types)}: expected {other} or {FULL} for each of the "
                f"{self.depth} layers"
            )
        return list(types)

    def foreign(
        self,
        overrides: Sequence[str],
        rules: Sequence[ConversionRule],
        layers: Sequence[LayerFacts] = (),
        *,
        ignored: tuple[str, ...] = (),
    ) -> Foreign:
        """Everything as one. rules: those of blocks have `{n}`; ignored: beginnings of names that are not read."""
        context = min(self.positions, CONTEXT)
        return Foreign(
            [*self.overrides, *self.attention, *overrides, *of_layers(layers, self.attention)],
            [each for rule in rules for each in (per_block([rule], self.depth) if _of_block(rule) else [rule])],
            DataSpec("text", (context,)),
            self.vocabulary,
            self.vocabulary,
            text=["data=code", f"data.context={context}"],
            ignored=lambda name: name.endswith("rotary_emb.inv_freq") or name.startswith(ignored),
        )


def _of_block(rule: ConversionRule) -> bool:
    return any("{n}" in name for name in (*rule.ours, *rule.theirs))


def of_layers(layers: Sequence[LayerFacts], attention: Sequence[str]) -> list[str]:
    """The overrides of `layers`: none where all are as the config says."""
    kinds = {layer.name: layer.overrides(attention) for layer in layers if layer.name != BASE_KIND}
    if not kinds:
        return ["layers=same"]
    names = [layer.name for layer in layers]
    period = next(p for p in range(1, len(names) + 1) if names == (names[:p] * len(names))[: len(names)])
    pattern = f"layers.pattern=[{','.join(names[:period])}]"
    return ["layers=same", pattern, *(f"layers.kinds.{name}=[{','.join(each)}]" for name, each in kinds.items())]


def attention_rules(sizes: DecoderSizes, maps: Sequence[BothWays] = ()) -> list[ConversionRule]:
    """Of the projections of attention. maps: of queries, keys and values."""
    layer = "model.layers.{n}.self_attn"
    widths = [sizes.heads * sizes.head_dim, *[sizes.kv_heads * sizes.head_dim] * 2]
    names = [f"{layer}.{each}_proj" for each in "qkv"]
    rules = stacked_modules("blocks.{n}.token_mixer.proj_in", names, widths, maps)
    return rules + modules({"blocks.{n}.token_mixer.proj_out": f"{layer}.o_proj"})


def gated_rules(
    hidden: int,
    ours: str = "blocks.{n}.channel_mixer",
    theirs: str = "model.layers.{n}.mlp",
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> list[ConversionRule]:
    """Of a gated channel mixer. names: of the gate, the value and what joins them, in their module."""
    gate, value, down = names
    rules = stacked_modules(f"{ours}.proj_in", [f"{theirs}.{gate}", f"{theirs}.{value}"], [hidden] * 2)
    return rules + modules({f"{ours}.proj_out": f"{theirs}.{down}"})


def expert_rules(
    count: int, hidden: int, theirs: str, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
) -> list[ConversionRule]:
    """Of a router and its gated experts; theirs: their module in a block."""
    ours = "blocks.{n}.channel_mixer"
    rules = [same(f"{ours}.router.weight", f"{theirs}.gate.weight")]
    for number in range(count):
        rules += gated_rules(hidden, f"{ours}.expert.{number}", f"{theirs}.experts.{number}", names)
    return rules


def shared_expert_rules(number: int, hidden: int, theirs: str) -> list[ConversionRule]:
    """Of the shared experts, which are one wide expert `theirs`."""
    ours = [f"blocks.{{n}}.channel_mixer.shared.{e}" for e in range(number)]

    def apart(wide: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat(pair) for pair in zip(*(each.split(hidden) for each in wide), strict=True)]

    def join(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat(each) for each in zip(*(one.chunk(2) for one in own), strict=True)]

    return [
        ConversionRule(
            tuple(f"{each}.proj_in.weight" for each in ours),
            (f"{theirs}.gate_proj.weight", f"{theirs}.up_proj.weight"),
            apart,
            join,
        ),
        ConversionRule(
            tuple(f"{each}.proj_out.weight" for each in ours),
            (f"{theirs}.down_proj.weight",),
            lambda wide: wide[0].split(hidden, dim=1),
            lambda own: [torch.cat([*own], 1)],
        ),
    ]


def table_rules(is_tied: bool) -> list[ConversionRule]:
    """Of the table, the final norm and the head."""
    tables = table_and_head("model.embed_tokens.weight", is_tied=is_tied)
    return [*tables, same("final_norm.weight", "model.norm.weight")]


def dense_layers(settings: LibrarySettings, depth: int) -> list[bool]:
    """Whether each layer has no experts. Raises UserError for a list of something else than layers."""
    every, named = settings.integer("decoder_sparse_step", 1, is_dimension=False), settings.take("mlp_only_layers", [])
    named = [] if named is None else named
    if not isinstance(named, list) or not all(isinstance(n, int) and 0 <= n < depth for n in named):
        raise UserError(f"{settings.name}: mlp_only_layers={quoted(named)}: expected numbers of the {depth} layers")
    return [layer in named or bool((layer + 1) % every) for layer in range(depth)]


def experts(settings: LibrarySettings, sizes: DecoderSizes, count: int, key: str, *, normalise: bool) -> list[str]:
    """The overrides of gated experts that a softmax chooses. key: of their hidden width."""
    settings.take("router_aux_loss_coef", None)  # of training, as are these
    settings.take("output_router_logits", None)
    settings.must("router_jitter_noise", 0.0)
    member = "channel_mixer.members.glu"
    return [
        *(f"channel_mixer.count={count}", f"channel_mixer.active={settings.integer('num_experts_per_tok')}"),
        *(f"channel_mixer.normalise={boolean(normalise)}", *sizes.gated(key, member)),
    ]


# Options of training that experts have: what `read` says of them does not matter.
UNCOMPARED_OF_EXPERTS = frozenset(
    f"channel_mixer.{name}" for name in ("balance", "weight", "bias_rate", "z_loss", "capacity")
)


def written_experts(run: Trained) -> tuple[list[int], Mapping[str, Any], LibraryConfig]:
    """The layers without experts, the options of those with experts, and the keys that the classes share.

    Raises UserError where no layer has experts, or one has no channel mixer.
    """
    dense = [layer for layer, nodes in enumerate(run.layers) if "count" not in nodes["channel_mixer"]]
    if len(dense) == run.ctx.depth:
        raise UserError("no layer has channel_mixer=experts")
    shapes = {layer: run.shape(f"blocks.{layer}.channel_mixer.proj_out.weight") for layer in dense}
    if bare := [layer for layer, shape in shapes.items() if not shape]:
        raise UserError(f"layer {bare[0]} has no channel mixer")
    routed = min({*range(run.ctx.depth)} - {*dense})
    mixer = run.layers[routed]["channel_mixer"]
    hidden = run.shape(f"blocks.{routed}.channel_mixer.expert.0.proj_out.weight")[1]
    normalise = mixer.get("normalise")
    config = {
        "intermediate_size": shapes[dense[0]][1] if dense else hidden,
        "moe_intermediate_size": hidden,
        "num_experts_per_tok": mixer["active"],
        "norm_topk_prob": mixer["active"] > 1 if normalise is None else normalise,
    }
    return dense, mixer, config


def shared(run: Trained) -> LibraryConfig:
    """The keys of the family."""
    names = inverse(ACTIVATIONS)
    mixers = [layer["channel_mixer"] for layer in run.layers]
    activations = (mixer.get("activation") or _member(mixer).get("activation") for mixer in mixers)
    return {
        "vocab_size": run.ctx.outputs,
        "hidden_size": run.ctx.dim,
        "intermediate_size": run.hidden,
        "num_hidden_layers": run.ctx.depth,
        "num_attention_heads": run.ctx.heads,
        "num_key_value_heads": run.kv_heads,
        "head_dim": run.head_dim,
        "hidden_act": names.get(str(next(activations, None)), "silu"),
        "max_position_embeddings": run.ctx.tokens.max_len,
        "rms_norm_eps": run.option("norm.eps") or 1e-6,
        "rope_parameters": written_rotary(run),
        "tie_word_embeddings": bool(run.option("head.tied")),
        "pad_token_id": None,
        "bos_token_id": run.ctx.tokens.start,
        "eos_token_id": run.ctx.tokens.end,
    }


def _member(mixer: Mapping[str, Any]) -> Mapping[str, Any]:
    members = mixer.get("members")
    return next(iter(members.values()), {}) if isinstance(members, Mapping) else {}


def windows(run: Trained) -> list[int | None]:
    """The window of each layer, None where it attends to all tokens."""
    return [layer["token_mixer"].get("window") for layer in run.layers]


def written_types(run: Trained) -> LibraryConfig:
    """The keys about windows, where layers may differ in them. Several windows are read back as the first one."""
    of_layers = windows(run)
    used = [window for window in of_layers if window is not None]
    return {
        "layer_types": [FULL if window is None else SLIDING for window in of_layers],
        "use_sliding_window": bool(used),
        "sliding_window": used[0] if used else None,
    }
