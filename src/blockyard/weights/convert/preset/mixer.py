"""MLP-Mixer of timm, whose names fix width, depth and patch.

Reference: timm models/mlp_mixer.py, MlpMixer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained, expansion
from blockyard.weights.convert.preset.vit import head, images, patches, square
from blockyard.weights.convert.rules import modules, per_block
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings

_LAYER = {
    "token_norm": "norm1",
    "channel_norm": "norm2",
    "token_mixer.expand": "mlp_tokens.fc1",
    "token_mixer.contract": "mlp_tokens.fc2",
    "channel_mixer.proj_in": "mlp_channels.fc1",
    "channel_mixer.proj_out": "mlp_channels.fc2",
}


def read(settings: LibrarySettings) -> Foreign:
    """A Mixer's sizes as overrides."""
    dim, hidden = settings.integer("embed_dim"), settings.integer("hidden")
    tokens = f"token_mixer.expansion={settings.integer('token_hidden') / dim!r}"
    return mlp_mixer(settings, _LAYER, [tokens, expansion(hidden, dim)])


def mlp_mixer(settings: LibrarySettings, layer: Mapping[str, str], expansions: Sequence[str]) -> Foreign:
    """A model of timm's class MlpMixer.

    layer: the modules of a block, ours and theirs; expansions: the overrides that give the widths of its MLPs
    """
    dim, depth, data = settings.integer("embed_dim"), settings.integer("depth"), images(settings)
    settings.must("act", "GELU")
    settings.must("global_pool", "avg")
    overrides = [
        f"model.dim={dim}",
        f"model.depth={depth}",
        f"tokenizer.size={settings.integer('patch_size')}",
        *expansions,
        f"norm.eps={settings.number('eps')!r}",
    ]
    rules = per_block(modules({f"blocks.{{n}}.{o}": f"blocks.{{n}}.{t}" for o, t in layer.items()}), depth)
    last, partly = head(settings)
    return Foreign(
        overrides, [*rules, *last, *patches(settings, data, "stem")], data, outputs=data.classes, partly=partly
    )


def write(run: Trained) -> LibraryConfig:
    """What `describe` would read off the library's model."""
    token_hidden = (run.shape("blocks.0.token_mixer.expand.weight") or (1,))[0]
    return mlp_mixer_settings(run) | {"token_hidden": token_hidden, "hidden": run.hidden}


def mlp_mixer_settings(run: Trained) -> LibraryConfig:
    """The settings of a model of timm's class MlpMixer, without the widths of its MLPs."""
    return square(run) | {
        "depth": run.ctx.depth,
        "eps": run.option("norm.eps") or 1e-6,
        "act": "GELU",
        "global_pool": "avg",
    }


CONVERTER = Converter(
    "mixer",
    "timm",
    "MlpMixer",
    read,
    write,
    families=("tokenizer", *MODEL),
    uncompared=frozenset({"model.heads"}),  # it has no heads
)
