"""gMLP of timm, whose names fix width, depth and patch.

Reference: timm models/mlp_mixer.py, SpatialGatingBlock
"""

from __future__ import annotations

from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained
from blockyard.weights.convert.preset.mixer import mlp_mixer, mlp_mixer_settings
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

_LAYER = {
    "token_norm": "norm",
    "token_mixer.proj_in": "mlp_channels.fc1",
    "token_mixer.proj_out": "mlp_channels.fc2",
    "token_mixer.gate.norm": "mlp_channels.gate.norm",
    "token_mixer.gate": "mlp_channels.gate.proj",
}


def read(settings: LibrarySettings) -> Foreign:
    """A gMLP's sizes as overrides."""
    hidden, dim = settings.integer("hidden"), settings.integer("embed_dim")
    return mlp_mixer(settings, _LAYER, [f"token_mixer.expansion={hidden / dim!r}"])


def write(run: Trained) -> LibraryConfig:
    """What `describe` would read off the library's model."""
    hidden = (run.shape("blocks.0.token_mixer.proj_in.weight") or (1,))[0]
    return mlp_mixer_settings(run) | {"hidden": hidden}


CONVERTER = Converter(
    "gmlp",
    "timm",
    "MlpMixer",
    read,
    write,
    families=("tokenizer", *MODEL),
    uncompared=frozenset({"model.heads"}),  # it has no heads
)
