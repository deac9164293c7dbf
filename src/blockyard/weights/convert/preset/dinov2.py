"""DINOv2: a Vision Transformer with LayerScale, in the class of timm that holds both.

Reference: timm models/vision_transformer.py, vit_small_patch14_dinov2
"""

from __future__ import annotations

from dataclasses import replace

from blockyard.weights.convert.converter import MODEL, Converter, Foreign, Trained
from blockyard.weights.convert.preset import vit
from blockyard.weights.convert.rules import per_block, same
from blockyard.weights.convert.settings import LibraryConfig, LibrarySettings
from blockyard.weights.convert.timm_models import INITIAL

SCALES = {"token_finish": "ls1", "channel_finish": "ls2"}


def read(settings: LibrarySettings) -> Foreign:
    """The sizes as overrides."""
    settings.take("init_values")  # where training starts
    foreign = vit.read(settings)
    scales = [same(f"blocks.{{n}}.{ours}.weight", f"blocks.{{n}}.{theirs}.gamma") for ours, theirs in SCALES.items()]
    return replace(foreign, rules=[*foreign.rules, *per_block(scales, settings.integer("depth"))])


def write(run: Trained) -> LibraryConfig:
    """What `describe` would read off the library's model."""
    return vit.write(run) | {"init_values": INITIAL}


CONVERTER = Converter("dinov2", "timm", "VisionTransformer", read, write, families=("tokenizer", *MODEL))
