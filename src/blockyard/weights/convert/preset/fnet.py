"""FNet, over one segment. Theirs projects the embedded tokens once more, which the paper's and ours do not.

Reference: transformers FNetForMaskedLM
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from blockyard.contracts import DataSpec
from blockyard.errors import UserError
from blockyard.weights.convert.converter import Converter, Foreign, Trained
from blockyard.weights.convert.preset.bert import LAYER, EncoderSizes, is_elsewhere, layers, masked_head, shared
from blockyard.weights.convert.rules import ConversionRule, modules, spare
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

_PROJECTION = ("fnet.embeddings.projection.weight", "fnet.embeddings.projection.bias")


def read(settings: LibrarySettings) -> Foreign:
    """FNet's config as overrides."""
    sizes = EncoderSizes(settings, "gelu_new")
    settings.must("use_tpu_fourier_optimizations", False)
    for key in ("tpu_short_seq_length", "type_vocab_size"):
        settings.take(key, None)
    is_tied = settings.is_tied(True)
    vocabulary, positions = settings.integer("vocab_size", 32000), settings.integer("max_position_embeddings", 512)
    names = LAYER | {"token_norm": "fourier.output.LayerNorm"}
    del names["token_mixer.proj_out"]
    rules = layers(names, "fnet.encoder.layer", sizes.depth, sizes.dim, inner="") + masked_head(is_tied, "fnet")
    rules += [*modules({"blocks.0.first_norm": "fnet.embeddings.LayerNorm"}), _projection(sizes.dim)]
    pooler = "fnet.pooler.dense"  # of another task
    rules += [spare(f"{pooler}.weight", sizes.dim, sizes.dim), spare(f"{pooler}.bias", sizes.dim)]
    return Foreign(
        [*sizes.overrides, *sizes.masked_head],
        rules,
        DataSpec("text", (positions,)),
        vocabulary,
        vocabulary,
        text=["data=code", f"data.context={positions}"],
        ignored=lambda name: is_elsewhere(name.replace("fnet.", "bert.", 1)),
    )


def _projection(dim: int) -> ConversionRule:
    """The projection that ours has not: it must be the identity."""

    def check(parts: Sequence[Tensor]) -> Sequence[Tensor]:
        if not torch.equal(parts[0], torch.eye(dim).to(parts[0])) or parts[1].any():
            raise UserError(
                "fnet.embeddings.projection is not the identity: preset=fnet is the paper's model, which has no "
                "projection behind the embedding"
            )
        return []

    return ConversionRule((), _PROJECTION, check, lambda _: [torch.eye(dim), torch.zeros(dim)])


def write(run: Trained) -> LibraryConfig:
    """FNet's config of a model of ours."""
    return shared(run)


CONVERTER = Converter(
    "fnet",
    "transformers",
    "FNetForMaskedLM",
    read,
    write,
    model_type="fnet",
    uncompared=frozenset({"head.tied", "model.heads"}),  # it has no heads
)
