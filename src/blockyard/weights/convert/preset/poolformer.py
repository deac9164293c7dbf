"""PoolFormer's blocks, of the first stage of timm's model.

Reference: timm models/metaformer.py
"""

from __future__ import annotations

from blockyard.contracts import DataSpec
from blockyard.weights.convert.converter import Converter, Foreign, expansion
from blockyard.weights.convert.rules import modules, per_block, reshaped, same
from blockyard.weights.convert.settings import LibrarySettings

PARTLY = (
    "timm's PoolFormer has four stages of their own widths, a norm over tokens and channels, and its last norm behind "
    "the mean; the preset is of one width, with a norm over channels"
)


def read(settings: LibrarySettings) -> Foreign:
    """The sizes of the first stage as overrides."""
    dim, depth, hidden = (settings.integer(key) for key in ("embed_dim", "depth", "hidden"))
    settings.take("stages")
    side, channels = settings.integer("img_size", is_dimension=False), settings.integer("in_chans")
    rules = []
    for ours, theirs in {"token_norm": "norm1", "channel_norm": "norm2"}.items():
        rules += modules({f"blocks.{{n}}.{ours}": f"stages.0.blocks.{{n}}.{theirs}"})
    for ours, theirs in {"token_finish": "layer_scale1", "channel_finish": "layer_scale2"}.items():
        rules.append(same(f"blocks.{{n}}.{ours}.weight", f"stages.0.blocks.{{n}}.{theirs}.scale"))
    for ours, theirs, shape in (("proj_in", "fc1", (hidden, dim)), ("proj_out", "fc2", (dim, hidden))):
        own, name = f"blocks.{{n}}.channel_mixer.{ours}", f"stages.0.blocks.{{n}}.mlp.{theirs}"
        rules += [reshaped(f"{own}.weight", f"{name}.weight", (*shape, 1, 1), shape), *modules({own: name}, ["bias"])]
    return Foreign(
        [f"model.dim={dim}", f"model.depth={depth}", expansion(hidden, dim)],
        per_block(rules, depth),
        DataSpec("image", (channels, side, side), target="class", classes=settings.integer("num_classes")),
        ignored=lambda name: not name.startswith("stages.0.blocks."),
    )


CONVERTER = Converter("poolformer", "timm", "MetaFormer", read, partly=PARTLY)
