"""FNet, over one segment. The library projects the embedded tokens once more, unlike the paper and our preset.

Reference: transformers FNetForMaskedLM
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blockyard.errors import UserError
from blockyard.weights.convert import keys
from blockyard.weights.convert.preset.bert import (
    LAYER,
    SPECIAL_TOKENS,
    TYPES,
    encoder,
    is_elsewhere,
    layers,
    masked_head,
)
from blockyard.weights.convert.rules import ConversionRule, modules, spare

_PROJECTION = ("fnet.embeddings.projection.weight", "fnet.embeddings.projection.bias")
_POOLER = "fnet.pooler.dense"  # of another task


def _projection(dim: int) -> ConversionRule:
    """Return the rule of the projection that only the library has. It must be the identity."""

    def check(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        if not torch.equal(parts[0], torch.eye(dim).to(parts[0])) or parts[1].any():
            raise UserError(
                "fnet.embeddings.projection is not the identity: preset=fnet is the paper's model, which has no "
                "projection behind the embedding"
            )
        return []

    return ConversionRule((), _PROJECTION, check, lambda _: [torch.eye(dim), torch.zeros(dim)])


def _rules(values: keys.Values) -> Iterable[ConversionRule]:
    dim = values["model.dim"]
    names = LAYER | {"token_norm": "fourier.output.LayerNorm"}
    del names["token_mixer.proj_out"]
    return [
        *(*layers(names, "fnet.encoder.layer", inner=""), *masked_head(values["tied"], "fnet")),
        *(*modules({"blocks.0.first_norm": "fnet.embeddings.LayerNorm"}), _projection(dim)),
        *(spare(f"{_POOLER}.weight", dim, dim), spare(f"{_POOLER}.bias", dim)),
    ]


CONVERTER = keys.declared(
    "fnet",
    "FNetForMaskedLM",
    [
        *(*encoder("gelu_new", has_masked_head=True), keys.overrides("head.tied=false"), TYPES, SPECIAL_TOKENS),
        keys.fixed("use_tpu_fourier_optimizations", False),
        keys.ignored("tpu_short_seq_length"),
        *(keys.vocabulary(32000), keys.positions("max_position_embeddings", 512), keys.tied(True, "tied")),
    ],
    _rules,
    skipped=lambda name: is_elsewhere(name.replace("fnet.", "bert.", 1)),
    uncompared=frozenset({"head.tied", "model.heads"}),  # it has no heads
)
