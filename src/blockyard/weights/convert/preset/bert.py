"""BERT, over one segment: the vector of its token type is part of our table of token ids.

Its output layer shares the table without token types, so that an imported head is not tied; predictions are then equal,
not only up to a constant.

Reference: transformers BertForMaskedLM, BertForSequenceClassification
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blockyard.contracts import DataSpec
from blockyard.weights.convert.converter import Converter, Foreign, Trained, expansion
from blockyard.weights.convert.rules import ConversionRule, modules, per_block, same, stacked_modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings, inverse

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
CLASSIFIER = "BertForSequenceClassification"
LAYER = {
    "token_mixer.proj_out": "attention.output.dense",
    "token_norm": "attention.output.LayerNorm",
    "channel_mixer.proj_in": "intermediate.dense",
    "channel_mixer.proj_out": "output.dense",
    "channel_norm": "output.LayerNorm",
}


def layers(
    names: dict[str, str], prefix: str, depth: int, dim: int, inner: str = "attention.self"
) -> list[ConversionRule]:
    """Rules of blocks whose attention keeps queries, keys and values apart, or has none."""
    rules = modules({f"blocks.{{n}}.{ours}": f"{prefix}.{{n}}.{theirs}" for ours, theirs in names.items()})
    if inner:
        parts = [f"{prefix}.{{n}}.{inner}.{each}" for each in ("query", "key", "value")]
        rules += stacked_modules("blocks.{n}.token_mixer.proj_in", parts, [dim] * 3)
    return per_block(rules, depth)


def table(module: str, is_tied: bool) -> ConversionRule:
    """Our table of token ids and head: theirs plus the vector of the first token type, and theirs as it is.

    Back, the vector of the token types is zero.
    """
    word_table, types = (f"{module}.{each}_embeddings.weight" for each in ("word", "token_type"))
    head = ("cls.predictions.decoder.weight",)
    more, aliases = ((), head) if is_tied else (head, ())

    def to_ours(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [parts[0] + parts[1][0], parts[2] if more else parts[0]]

    def to_theirs(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [own[0], torch.zeros(2, own[0].shape[1]), *(own[1:] if more else ())]

    ours = ("embedder.symbols.weight", "head.proj.weight")
    return ConversionRule(ours, (word_table, types, *more), to_ours, to_theirs, aliases=aliases)


class EncoderSizes:
    """What the configs of BERT, FNet, GIT and ViLT share, and what the head of a masked language model takes of it."""

    def __init__(self, settings: LibrarySettings, activation: str = "gelu") -> None:
        """activation: theirs, where a config names none."""
        self.dim, self.depth = settings.integer("hidden_size", 768), settings.integer("num_hidden_layers", 12)
        activation = settings.one_of("hidden_act", ACTIVATIONS, activation)
        eps = settings.number("layer_norm_eps", 1e-12)
        self.overrides = [
            f"model.dim={self.dim}",
            f"model.depth={self.depth}",
            expansion(settings.integer("intermediate_size", 3072), self.dim),
            f"channel_mixer.activation={activation}",
            f"norm.eps={eps!r}",
        ]
        self.masked_head = ["head.tied=false", f"head.hidden={activation}", f"head.hidden_eps={eps!r}"]


def read(settings: LibrarySettings) -> Foreign:
    """BERT's config as overrides."""
    sizes = EncoderSizes(settings)
    overrides = [*sizes.overrides, f"model.heads={settings.integer('num_attention_heads', 12)}"]
    settings.must("position_embedding_type", "absolute")
    settings.take("type_vocab_size", 2)
    vocabulary, positions = settings.integer("vocab_size", 30522), settings.integer("max_position_embeddings", 512)
    names = {"blocks.0.first_norm": "bert.embeddings.LayerNorm"}
    rules = layers(LAYER, "bert.encoder.layer", sizes.depth, sizes.dim) + modules(names)
    if CLASSIFIER in (settings.values.get("architectures") or ()):
        return _classifier(settings, overrides, rules, vocabulary, positions)
    rules += masked_head(settings.is_tied(True), "bert")
    return Foreign(
        [*overrides, *sizes.masked_head],
        rules,
        DataSpec("text", (positions,)),
        vocabulary,
        vocabulary,
        text=["data=code", f"data.context={positions}"],
        ignored=is_elsewhere,
    )


def masked_head(is_tied: bool, module: str) -> list[ConversionRule]:
    """Rules of the table of token ids, the positions and the head of masked language models."""
    transform = "cls.predictions.transform"
    head = modules({"head.hidden.proj": f"{transform}.dense", "head.hidden.norm": f"{transform}.LayerNorm"})
    return [
        table(f"{module}.embeddings", is_tied),
        replace(same("head.proj.bias", "cls.predictions.bias"), copies=("cls.predictions.decoder.bias",)),
        same("position.table", f"{module}.embeddings.position_embeddings.weight"),
        *head,
    ]


def is_elsewhere(name: str) -> bool:
    """Whether a weight is of another task (the pooler, the next sentence), or there twice."""
    others = ("bert.pooler.", "cls.seq_relationship.")
    return name.startswith(others) or name.endswith(("position_ids", "token_type_ids"))


def _classifier(
    settings: LibrarySettings, overrides: list[str], rules: list[ConversionRule], vocabulary: int, positions: int
) -> Foreign:
    """Of a class from the first token, [CLS], which is our class token: its vector and that of the first position."""
    labels = settings.optional_integer("num_labels") or len(settings.mapping("id2label") or (0, 1))
    first = settings.integer("cls_token_id", 101, least=0)
    if first >= vocabulary:
        settings.problems.append(f"cls_token_id={first}: expected a token id below vocab_size={vocabulary}")
    settings.take("tie_word_embeddings", True)  # of the masked language model
    own = ("embedder.symbols.weight", "position.table", "prefix.class_token")
    names = [f"bert.embeddings.{each}_embeddings.weight" for each in ("word", "position", "token_type")]

    def to_ours(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        word_table, position_table = parts[0] + parts[2][0], parts[1]
        return [word_table, position_table[1:], word_table[first][None] + position_table[:1]]

    def to_theirs(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        position_table = torch.cat([parts[2] - parts[0][first], parts[1]])
        return [parts[0], position_table, torch.zeros(2, parts[0].shape[1])]

    head = {"head.hidden": "bert.pooler.dense", "head.proj": "classifier"}
    overrides += ["head=class_token", "head.hidden=tanh", "objective=classify", "model.prefix.class_token=true"]
    return Foreign(
        overrides,
        [*rules, ConversionRule(own, tuple(names), to_ours, to_theirs), *modules(head)],
        DataSpec("text", (positions - 1,), variable=True, target="class", classes=labels),
        vocabulary,
        labels,
        ignored=lambda name: name.endswith(("position_ids", "token_type_ids")),
    )


def write(run: Trained) -> LibraryConfig:
    """BERT's config of a model of ours."""
    config = shared(run) | {"num_attention_heads": run.ctx.heads}
    if run.shape("prefix.class_token"):
        return config | {
            "architectures": [CLASSIFIER],
            "vocab_size": run.ctx.tokens.vocabulary,
            "max_position_embeddings": run.ctx.tokens.max_len + 1,
            "num_labels": run.ctx.outputs,
            "id2label": {str(n): f"LABEL_{n}" for n in range(run.ctx.outputs)},
            "label2id": {f"LABEL_{n}": n for n in range(run.ctx.outputs)},
            "cls_token_id": 0,  # any id: what its vector lacks is in the first position
        }
    return config


def shared(run: Trained) -> LibraryConfig:
    """The keys of BERT and FNet."""
    names = inverse(ACTIVATIONS)
    return {
        "vocab_size": run.ctx.outputs,
        "hidden_size": run.ctx.dim,
        "num_hidden_layers": run.ctx.depth,
        "intermediate_size": run.hidden,
        "hidden_act": names.get(run.option("channel_mixer.activation"), "gelu"),
        "max_position_embeddings": run.ctx.tokens.max_len,
        "layer_norm_eps": run.option("norm.eps") or 1e-12,
        "type_vocab_size": 2,
        "tie_word_embeddings": bool(run.option("head.tied")),
        "pad_token_id": None,
        "mask_token_id": run.ctx.tokens.mask,
    }


CONVERTER = Converter(
    "bert",
    "transformers",
    "BertForMaskedLM",
    read,
    write,
    model_type="bert",
    others=(CLASSIFIER, "BertForPreTraining"),
    uncompared=frozenset({"head.tied"}),
)
