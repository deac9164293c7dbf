"""Bounds of the numbers that a config from elsewhere declares, checked before a model is built with them.

A number must be of its type and within the bound of its kind. A dimension of a weight cannot exceed the largest
dimension in the file of weights, and there are no more layers than tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockyard.errors import UserError, quoted

# The largest value of each kind: more than any published model has, and small enough to build on the meta device.
LARGEST = {
    "layers": 1024,
    "heads": 4096,
    "width": 2**17,
    "hidden width": 2**20,
    "vocabulary": 2**24,
    "positions": 2**24,
    "size": 2**14,
    "classes": 2**22,
    "number": 2**24,
}
# The kinds of keys of transformers' and timm's configs; any other key is a number.
_KEYS = {
    "layers": "n_layer num_layers num_hidden_layers num_decoder_layers encoder_layers decoder_layers depth "
    "num_self_attends_per_block",
    "heads": "n_head num_heads num_attention_heads num_key_value_heads encoder_attention_heads "
    "num_self_attention_heads num_conv_pos_embedding_groups",
    "width": "n_embd hidden_size d_model d_latents embed_dim head_dim d_kv",
    "hidden width": "n_inner intermediate_size d_ff ffn_dim encoder_ffn_dim hidden token_hidden",
    "vocabulary": "vocab_size",
    "positions": "n_positions max_position_embeddings max_source_positions max_target_positions num_latents "
    "context_length prediction_length relative_attention_max_distance",
    "size": "img_size image_size patch_size patch_length patch_stride conv_kernel conv_stride conv_dim in_chans "
    "num_channels num_conv_pos_embeddings num_mel_bins reg_tokens relative_attention_num_buckets "
    "self_attention_widening_factor",
    "classes": "num_classes num_labels",
}
KINDS = {key: kind for kind, keys in _KEYS.items() for key in keys.split()}


@dataclass(frozen=True)
class Stored:
    """The bounds from a file of weights: the number of its tensors, and the largest of their dimensions."""

    tensors: int
    largest: int

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Stored:
        """Return the bounds of a file with tensors of these shapes."""
        return cls(len(shapes), max((max(shape, default=0) for shape in shapes.values()), default=0))


def whole_number(
    where: str, key: str, value: Any, *, least: int = 1, stored: Stored | None = None, is_dimension: bool = True
) -> int:
    """Return a whole number of at least `least`. Raises UserError for another type, or a value out of its bounds.

    where: the config that declares it; stored: the bounds from the file of weights, if there is one
    is_dimension: whether it is a dimension of a weight, or a share of one
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        kind = "a whole number above 0" if least == 1 else f"a whole number of at least {least}"
        raise UserError(f"{where}: {key}={quoted(value)} is not {kind}")
    kind = KINDS.get(key, "number")
    if value > LARGEST[kind]:
        raise UserError(f"{where}: {key}={quoted(value)}: the {kind} may be at most {LARGEST[kind]:,}")
    if stored is not None and kind == "layers" and value > stored.tensors:
        raise UserError(f"{where}: {key}={value}: its file of weights has {stored.tensors} tensors, fewer than layers")
    if stored is not None and kind != "layers" and is_dimension and value > stored.largest:
        raise UserError(
            f"{where}: {key}={value}: no tensor in its file of weights is that large (the largest dimension is "
            f"{stored.largest:,})"
        )
    return value


def real_number(where: str, key: str, value: Any) -> float:
    """Return a finite number. Raises UserError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{where}: {key}={quoted(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"{where}: {key}={quoted(value)} is not a finite number")
    return number


def flag(where: str, key: str, value: Any) -> bool:
    """Return true or false. Raises UserError for anything else."""
    if not isinstance(value, bool):
        raise UserError(f"{where}: {key}={quoted(value)} is not true or false")
    return value


def mapping(where: str, key: str, value: Any) -> dict[str, Any]:
    """Return a mapping with keys of text. Raises UserError for anything else."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise UserError(f"{where}: {key}={quoted(value)} is not a mapping")
    return dict(value)


def names(where: str, key: str, value: Any) -> list[str]:
    """Return a list of names. Raises UserError for anything else."""
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise UserError(f"{where}: {key}={quoted(value)} is not a list of names")
    return list(value)
