"""The Vision Transformer of timm. Its config is what `timm_models.describe` reads off the library's model.

Reference: timm models/vision_transformer.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import DataSpec
from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained, boolean, expansion
from blockyard.weights.convert.rules import ConversionRule, modules, per_block, reshaped, same
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

_LAYER = {
    "token_norm": "norm1",
    "channel_norm": "norm2",
    "token_mixer.proj_in": "attn.qkv",
    "token_mixer.proj_out": "attn.proj",
    "channel_mixer.proj_in": "mlp.fc1",
    "channel_mixer.proj_out": "mlp.fc2",
}


def images(settings: LibrarySettings) -> DataSpec:
    """The images and classes that a model of timm is for."""
    side = settings.integer("img_size", is_dimension=False)
    shape = (settings.integer("in_chans"), side, side)
    return DataSpec("image", shape, target="class", classes=settings.integer("num_classes", least=0) or 2)


def head(settings: LibrarySettings) -> tuple[list[ConversionRule], str]:
    """The rules of the last norm and the head, and why the model is only a part of ours where it has no classes."""
    names, partly = {"final_norm": "norm", "head.proj": "head"}, ""
    if not settings.integer("num_classes", least=0):
        del names["head.proj"]
        partly = "num_classes=0: it has no head"
    return modules(names), partly


def patches(settings: LibrarySettings, data: DataSpec, module: str) -> list[ConversionRule]:
    """Rules of the projection of patches, a convolution of theirs."""
    size, dim = settings.integer("patch_size"), settings.integer("embed_dim")
    channels = data.shape[0]
    weight = reshaped(
        "embedder.proj.weight", f"{module}.proj.weight", (dim, channels, size, size), (dim, channels * size * size)
    )
    return [weight, same("embedder.proj.bias", f"{module}.proj.bias")]


def read(settings: LibrarySettings) -> Foreign:
    """A Vision Transformer's sizes as overrides."""
    dim, depth, data = settings.integer("embed_dim"), settings.integer("depth"), images(settings)
    settings.must("act", "GELU")
    registers, has_class = settings.integer("reg_tokens", least=0), settings.flag("class_token")
    pool = settings.take("global_pool")
    if pool not in ("token", "avg") or (pool == "avg") is has_class:
        settings.problems.append(
            f"global_pool={pool!r}, class_token={has_class}: expected the class token, or the mean"
        )
    settings.must("pos_embed", True)
    settings.must("qkv_bias", True)
    overrides = [
        f"model.dim={dim}",
        f"model.depth={depth}",
        f"model.heads={settings.integer('num_heads')}",
        f"model.prefix.class_token={boolean(has_class)}",
        f"model.prefix.registers={registers}",
        f"tokenizer.size={settings.integer('patch_size')}",
        expansion(settings.integer("hidden"), dim),
        f"norm.eps={settings.number('eps')!r}",
        *([] if has_class else ["head=mean_pool"]),
    ]
    rules = per_block(modules({f"blocks.{{n}}.{o}": f"blocks.{{n}}.{t}" for o, t in _LAYER.items()}), depth)
    last, partly = head(settings)
    rules += [*last, *patches(settings, data, "patch_embed")]
    rules.append(_prefix(settings.take("no_embed_class"), has_class, registers))
    return Foreign(overrides, rules, data, outputs=data.classes, partly=partly)


def _prefix(bare: bool, has_class: bool, registers: int) -> ConversionRule:
    """Class and register tokens, and positions, of which those tokens have some too unless `bare`."""
    tokens = (["cls_token"] if has_class else []) + (["reg_token"] if registers else [])
    ours = (["prefix.class_token"] if has_class else []) + (["prefix.registers"] if registers else [])
    counts = ([1] if has_class else []) + ([registers] if registers else [])

    def to_ours(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        table = parts[-1][0]
        vectors = [part[0] for part in parts[:-1]]
        if bare or not counts:
            return [*vectors, table]
        *positions, rest = table.split([*counts, len(table) - sum(counts)])
        return [*(vector + position for vector, position in zip(vectors, positions, strict=True)), rest]

    def to_theirs(own: Sequence[Tensor]) -> Sequence[Tensor]:
        table = own[-1] if bare else torch.cat([torch.zeros(sum(counts), own[-1].shape[1]), own[-1]])
        return [*(vector[None] for vector in own[:-1]), table[None]]

    return ConversionRule((*ours, "position.table"), (*tokens, "pos_embed"), to_ours, to_theirs)


def write(run: Trained) -> LibraryConfig:
    """What `describe` would read off the library's model."""
    has_class = bool(run.shape("prefix.class_token"))
    return square(run) | {
        "depth": run.ctx.depth,
        "num_heads": run.ctx.heads,
        "hidden": run.hidden,
        "eps": run.option("norm.eps") or 1e-6,
        "act": "GELU",
        "qkv_bias": True,
        "class_token": has_class,
        "reg_tokens": (run.shape("prefix.registers") or (0,))[0],
        "no_embed_class": True,
        "global_pool": "token" if has_class else "avg",
        "pos_embed": True,
    }


def square(run: Trained) -> LibraryConfig:
    """The keys that every model of images has."""
    channels, side = run.ctx.data.shape[0], run.ctx.data.shape[-1]
    return {
        "img_size": side,
        "in_chans": channels,
        "patch_size": run.option("tokenizer.size") or 1,
        "num_classes": run.ctx.outputs,
        "embed_dim": run.ctx.dim,
    }


CONVERTER = Converter("vit", "timm", "VisionTransformer", read, write, families=("tokenizer", *MODEL))
