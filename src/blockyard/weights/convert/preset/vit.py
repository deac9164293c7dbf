"""The Vision Transformer of timm. `timm_models.describe` makes its config from the library's model.

Reference: timm models/vision_transformer.py
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockyard.contracts import DataSpec
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import MODEL_FAMILIES, Trained
from blockyard.weights.convert.rules import ConversionRule, block_modules, modules, reshaped, same
from blockyard.weights.convert.settings import LibrarySettings

LAYER = {
    "token_norm": "norm1",
    "channel_norm": "norm2",
    "token_mixer.proj_in": "attn.qkv",
    "token_mixer.proj_out": "attn.proj",
    "channel_mixer.proj_in": "mlp.fc1",
    "channel_mixer.proj_out": "mlp.fc2",
}
FAMILIES = ("tokenizer", *MODEL_FAMILIES)


def _read_classes(settings: LibrarySettings, values: keys.Values) -> None:
    """Read the number of classes. A model without a head is only a part of ours."""
    values["classes"] = settings.integer("num_classes", least=0)
    if not values["classes"]:
        values["partly"] = "num_classes=0: it has no head"


# The keys that every model of images has.
IMAGES = [
    keys.whole("img_size", "side", write=lambda run: run.ctx.data.shape[-1], is_dimension=False),
    keys.whole("in_chans", "channels", write=lambda run: run.ctx.data.shape[0]),
    keys.Key(_read_classes, lambda run: {"num_classes": run.ctx.outputs}),
    keys.whole("patch_size", "tokenizer.size", write=lambda run: run.option("tokenizer.size") or 1),
    keys.whole("embed_dim", "model.dim"),
    keys.whole("depth", "model.depth"),
    keys.number("eps", "norm.eps", write=lambda run: run.option("norm.eps") or 1e-6),
    keys.stated("act", "GELU"),
]


def images(values: keys.Values) -> DataSpec:
    """Return the images and classes that a model of timm is for."""
    shape = (values["channels"], values["side"], values["side"])
    return DataSpec("image", shape, target="class", classes=values["classes"] or 2)


def around(values: keys.Values, module: str) -> list[ConversionRule]:
    """Return the rules of the last norm, the head, and the projection of patches, a convolution in timm."""
    size, dim, channels = values["tokenizer.size"], values["model.dim"], values["channels"]
    shape = (dim, channels, size, size)
    names = {"final_norm": "norm"}
    if values["classes"]:
        names["head.proj"] = "head"
    return [
        *modules(names),
        reshaped("embedder.proj.weight", f"{module}.proj.weight", shape, (dim, channels * size * size)),
        same("embedder.proj.bias", f"{module}.proj.bias"),
    ]


def _read_pool(settings: LibrarySettings, values: keys.Values) -> Iterable[str]:
    pool, has_class = settings.take("global_pool"), values["model.prefix.class_token"]
    if pool not in ("token", "avg") or (pool == "avg") is has_class:
        settings.problems.append(
            f"global_pool={pool!r}, class_token={has_class}: expected the class token, or the mean"
        )
    values["bare"] = settings.take("no_embed_class")
    return () if has_class else ("head=mean_pool",)


def _has_class(run: Trained) -> bool:
    return bool(run.shape("prefix.class_token"))


KEYS = [
    *IMAGES,
    keys.whole("num_heads", "model.heads"),
    keys.hidden("hidden"),
    keys.key("class_token", "model.prefix.class_token", lambda settings, _: settings.flag("class_token"), _has_class),
    keys.whole(
        "reg_tokens", "model.prefix.registers", write=lambda run: (run.shape("prefix.registers") or (0,))[0], least=0
    ),
    keys.Key(_read_pool, lambda run: {"global_pool": "token" if _has_class(run) else "avg", "no_embed_class": True}),
    keys.stated("qkv_bias", True),
    keys.stated("pos_embed", True),
]


def rules(values: keys.Values) -> list[ConversionRule]:
    """Return the rules of a Vision Transformer."""
    has_class, registers = values["model.prefix.class_token"], values["model.prefix.registers"]
    return [
        *(*block_modules(LAYER, "blocks.{n}"), *around(values, "patch_embed")),
        _prefix(values["bare"], has_class, registers),
    ]


def _prefix(bare: bool, has_class: bool, registers: int) -> ConversionRule:
    """Return the rule of class and register tokens and of positions. bare: these tokens have no positions"""
    tokens = []
    model_names = []
    counts = []
    if has_class:
        tokens.append("cls_token")
        model_names.append("prefix.class_token")
        counts.append(1)
    if registers:
        tokens.append("reg_token")
        model_names.append("prefix.registers")
        counts.append(registers)

    def to_model(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        table = parts[-1][0]
        vectors = [part[0] for part in parts[:-1]]
        if bare or not counts:
            return [*vectors, table]
        *positions, rest = table.split([*counts, len(table) - sum(counts)])
        return [*(vector + position for vector, position in zip(vectors, positions, strict=True)), rest]

    def to_library(model_tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        *vectors, table = model_tensors
        if not bare:
            table = torch.cat([torch.zeros(sum(counts), table.shape[1]), table])
        return [*(vector[None] for vector in vectors), table[None]]

    return ConversionRule((*model_names, "position.table"), (*tokens, "pos_embed"), to_model, to_library)


CONVERTER = keys.declared("vit", "VisionTransformer", KEYS, rules, images, library="timm", families=FAMILIES)
