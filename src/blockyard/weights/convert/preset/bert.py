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
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import Foreign, Trained
from blockyard.weights.convert.rules import ConversionRule, block_modules, modules, same, stacked_modules
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
CLASSIFIER = "BertForSequenceClassification"
LAYER = {
    "token_mixer.proj_out": "attention.output.dense",
    "token_norm": "attention.output.LayerNorm",
    "channel_mixer.proj_in": "intermediate.dense",
    "channel_mixer.proj_out": "output.dense",
    "channel_norm": "output.LayerNorm",
}
HEADS = keys.whole("num_attention_heads", "model.heads", 12)
TYPES = keys.Key(keys.ignored("type_vocab_size").read, lambda _: {"type_vocab_size": 2})
SPECIAL_TOKENS = keys.written(pad_token_id=None, mask_token_id=lambda run: run.ctx.tokens.mask)
BERT = [HEADS, keys.fixed("position_embedding_type", "absolute"), TYPES, SPECIAL_TOKENS]
NORM = {"blocks.0.first_norm": "bert.embeddings.LayerNorm"}


def layers(names: dict[str, str], prefix: str, inner: str = "attention.self") -> list[ConversionRule]:
    """Return the rules of blocks with separate maps to queries, keys and values; `inner` is "" without attention."""
    rules = block_modules(names, f"{prefix}.{{n}}")
    if inner:
        parts = [f"{prefix}.{{n}}.{inner}.{part}" for part in ("query", "key", "value")]
        rules += stacked_modules("blocks.{n}.token_mixer.proj_in", parts)
    return rules


def table(module: str, is_tied: bool) -> ConversionRule:
    """Return the rule of the table of token ids and the head. The vector of the first token type is added to the table.

    An exported model has zeros as vectors of the token types.
    """
    tables = (f"{module}.word_embeddings.weight", f"{module}.token_type_embeddings.weight")
    head = "cls.predictions.decoder.weight"

    def to_model(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        word_table, types = parts[:2]
        return [word_table + types[0], word_table if is_tied else parts[2]]

    def to_library(model_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        word_table, output_layer = model_tensors
        types = torch.zeros(2, word_table.shape[1])
        if is_tied:
            return [word_table, types]
        return [word_table, types, output_layer]

    model_names = ("embedder.symbols.weight", "head.proj.weight")
    if is_tied:
        return ConversionRule(model_names, tables, to_model, to_library, aliases=(head,))
    return ConversionRule(model_names, (*tables, head), to_model, to_library)


def encoder(activation: str = "gelu", *, has_masked_head: bool = False) -> list[keys.Key]:
    """Return the keys of BERT, FNet, GIT and ViLT.

    activation: of a config that names none
    has_masked_head: the head of masked language models has the activation and the epsilon of the blocks
    """
    of_head = ("head.hidden", "head.hidden_eps") if has_masked_head else ("", "")
    return [
        keys.whole("hidden_size", "model.dim", 768),
        keys.whole("num_hidden_layers", "model.depth", 12),
        keys.hidden("intermediate_size", 3072),
        keys.choice("hidden_act", f"channel_mixer.activation {of_head[0]}", ACTIVATIONS, activation),
        keys.number("layer_norm_eps", f"norm.eps {of_head[1]}", 1e-12),
    ]


def masked_head(is_tied: bool, module: str) -> list[ConversionRule]:
    """Return the rules of the table of token ids, the positions and the head of masked language models."""
    transform = "cls.predictions.transform"
    head = modules({"head.hidden.proj": f"{transform}.dense", "head.hidden.norm": f"{transform}.LayerNorm"})
    return [
        table(f"{module}.embeddings", is_tied),
        replace(same("head.proj.bias", "cls.predictions.bias"), copies=("cls.predictions.decoder.bias",)),
        same("position.table", f"{module}.embeddings.position_embeddings.weight"),
        *head,
    ]


def is_elsewhere(name: str) -> bool:
    """Return whether a weight is of another task (the pooler, the next sentence), or stored twice."""
    others = ("bert.pooler.", "cls.seq_relationship.")
    return name.startswith(others) or name.endswith(("position_ids", "token_type_ids"))


def _read_classes(settings: LibrarySettings, values: keys.Values) -> None:
    """Read the number of classes, and the token id of [CLS]."""
    labels = settings.optional_integer("num_labels") or len(settings.mapping("id2label") or (0, 1))
    first = settings.integer("cls_token_id", 101, least=0)
    if first >= values["vocabulary"]:
        settings.problems.append(f"cls_token_id={first}: expected a token id below vocab_size={values['vocabulary']}")
    values |= {"outputs": labels, "first": first}


def _written_classes(run: Trained) -> LibraryConfig:
    labels = {str(n): f"LABEL_{n}" for n in range(run.ctx.outputs)}
    return {
        "num_labels": run.ctx.outputs,
        "id2label": labels,
        "label2id": {label: int(n) for n, label in labels.items()},
        "cls_token_id": 0,  # any id: what its vector lacks is in the first position
    }


def _first_token(first: int) -> ConversionRule:
    """Return the rule of [CLS], our class token. Its vector includes the vector of the first position."""
    model_names = ("embedder.symbols.weight", "position.table", "prefix.class_token")
    names = tuple(f"bert.embeddings.{part}_embeddings.weight" for part in ("word", "position", "token_type"))

    def to_model(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        word_table, position_table = parts[0] + parts[2][0], parts[1]
        return [word_table, position_table[1:], word_table[first][None] + position_table[:1]]

    def to_library(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        position_table = torch.cat([parts[2] - parts[0][first], parts[1]])
        return [parts[0], position_table, torch.zeros(2, parts[0].shape[1])]

    return ConversionRule(model_names, names, to_model, to_library)


_MASKED = keys.declared(
    "bert",
    "BertForMaskedLM",
    [
        *encoder(has_masked_head=True),
        *BERT,
        keys.vocabulary(30522),
        keys.positions("max_position_embeddings", 512),
        keys.tied(True, "tied"),
        keys.overrides("head.tied=false"),
    ],
    lambda values: [*layers(LAYER, "bert.encoder.layer"), *modules(NORM), *masked_head(values["tied"], "bert")],
    skipped=is_elsewhere,
)
_CLASSIFIER = keys.declared(
    "bert",
    CLASSIFIER,
    [
        *(*encoder(), *BERT, keys.written(architectures=[CLASSIFIER])),
        keys.whole("vocab_size", "vocabulary", 30522, lambda run: run.ctx.tokens.vocabulary),
        keys.whole("max_position_embeddings", "positions", 512, lambda run: run.ctx.tokens.max_len + 1),
        keys.Key(_read_classes, _written_classes),
        keys.ignored("tie_word_embeddings"),  # of the masked language model
        keys.overrides("head=class_token", "head.hidden=tanh", "objective=classify", "model.prefix.class_token=true"),
    ],
    lambda values: [
        *(*layers(LAYER, "bert.encoder.layer"), *modules(NORM), _first_token(values["first"])),
        *modules({"head.hidden": "bert.pooler.dense", "head.proj": "classifier"}),
    ],
    lambda values: DataSpec(
        "text", (values["positions"] - 1,), variable=True, target="class", classes=values["outputs"]
    ),
    skipped=lambda name: name.endswith(("position_ids", "token_type_ids")),
)


def _read(settings: LibrarySettings) -> Foreign:
    is_classifier = CLASSIFIER in (settings.values.get("architectures") or ())
    return (_CLASSIFIER if is_classifier else _MASKED).read(settings)


def _write(run: Trained) -> LibraryConfig:
    converter = _CLASSIFIER if run.shape("prefix.class_token") else _MASKED
    assert converter.write is not None
    return converter.write(run)


CONVERTER = replace(
    _MASKED, read=_read, write=_write, others=(CLASSIFIER, "BertForPreTraining"), uncompared=frozenset({"head.tied"})
)
