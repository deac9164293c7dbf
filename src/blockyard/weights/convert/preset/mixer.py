"""MLP-Mixer of timm. Its names fix width, depth and patch.

Reference: timm models/mlp_mixer.py, MlpMixer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockyard.config.override_grammar import to_override
from blockyard.weights.convert import keys
from blockyard.weights.convert.converter import Converter
from blockyard.weights.convert.preset import vit
from blockyard.weights.convert.rules import block_modules
from blockyard.weights.convert.settings import LibrarySettings

_LAYER = {
    "token_norm": "norm1",
    "channel_norm": "norm2",
    "token_mixer.expand": "mlp_tokens.fc1",
    "token_mixer.contract": "mlp_tokens.fc2",
    "channel_mixer.proj_in": "mlp_channels.fc1",
    "channel_mixer.proj_out": "mlp_channels.fc2",
}


def inner(name: str, weight: str) -> keys.Key:
    """Return the key of the outputs of a map of the token mixer, a weight of the first block."""

    def read(settings: LibrarySettings, values: keys.Values) -> list[str]:
        return [to_override("token_mixer.expansion", settings.integer(name) / values["model.dim"])]

    return keys.Key(read, lambda run: {name: (run.shape(f"blocks.0.token_mixer.{weight}.weight") or (1,))[0]})


def mlp_mixer(preset: str, layer: Mapping[str, str], widths: Sequence[keys.Key]) -> Converter:
    """Return the converter of a preset in timm's class MlpMixer.

    layer: the modules of a block, model name -> library name; widths: the keys of the hidden widths of its MLPs
    """
    return keys.declared(
        preset,
        "MlpMixer",
        [*vit.IMAGES, keys.stated("global_pool", "avg"), *widths],
        lambda values: [*block_modules(layer, "blocks.{n}"), *vit.around(values, "stem")],
        vit.images,
        library="timm",
        families=vit.FAMILIES,
        uncompared=frozenset({"model.heads"}),  # it has no heads
    )


CONVERTER = mlp_mixer("mixer", _LAYER, [inner("token_hidden", "expand"), keys.hidden("hidden")])
