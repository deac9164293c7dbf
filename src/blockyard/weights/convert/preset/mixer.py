"""MLP-Mixer of timm, whose names fix width, depth and patch.

Reference: timm models/mlp_mixer.py, MlpMixer
"""

from __future__ import annotations

from typing import Any

from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained, expansion
from blockyard.weights.convert.preset.vit import images, patches, square
from blockyard.weights.convert.rules import modules, per_block
from blockyard.weights.convert.settings import Settings

_LAYER = {
    "token_norm": "norm1",
    "channel_norm": "norm2",
    "token_mixer.expand": "mlp_tokens.fc1",
    "token_mixer.contract": "mlp_tokens.fc2",
    "channel_mixer.proj_in": "mlp_channels.fc1",
    "channel_mixer.proj_out": "mlp_channels.fc2",
}


def read(settings: Settings) -> Foreign:
    """A Mixer's sizes as overrides."""
    dim, depth, data = settings.integer("embed_dim"), settings.integer("depth"), images(settings)
    settings.must("act", "GELU")
    settings.must("global_pool", "avg")
    overrides = [
        f"model.dim={dim}",
        f"model.depth={depth}",
        f"tokenizer.size={settings.integer('patch_size')}",
        f"token_mixer.expansion={settings.integer('token_hidden') / dim!r}",
        expansion(settings.integer("hidden"), dim),
        f"norm.eps={settings.number('eps')!r}",
    ]
    rules = per_block(modules({f"blocks.{{n}}.{o}": f"blocks.{{n}}.{t}" for o, t in _LAYER.items()}), depth)
    rules += modules({"final_norm": "norm", "head.proj": "head"})
    return Foreign(overrides, [*rules, *patches(settings, data, "stem")], data, outputs=data.classes)


def write(run: Trained) -> dict[str, Any]:
    """What `describe` would read off the library's model."""
    return square(run) | {
        "depth": run.ctx.depth,
        "token_hidden": (run.shape("blocks.0.token_mixer.expand.weight") or (1,))[0],
        "hidden": run.hidden,
        "eps": run.option("norm.eps") or 1e-6,
        "act": "GELU",
        "global_pool": "avg",
    }


CONVERTER = Converter("mixer", "timm", "MlpMixer", read, write, families=("tokenizer", *MODEL))
