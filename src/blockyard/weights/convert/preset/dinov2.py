"""DINOv2: a Vision Transformer with LayerScale, in the class of timm that holds both.

Reference: timm models/vision_transformer.py, vit_small_patch14_dinov2
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert.preset import vit
from blockyard.weights.convert.rules import same
from blockyard.weights.convert.timm_models import INITIAL

CONVERTER = keys.declared(
    "dinov2",
    "VisionTransformer",
    [*vit.KEYS, keys.ignored("init_values"), keys.written(init_values=INITIAL)],  # where training starts
    lambda values: [
        *vit.rules(values),
        same("blocks.{n}.token_finish.weight", "blocks.{n}.ls1.gamma"),
        same("blocks.{n}.channel_finish.weight", "blocks.{n}.ls2.gamma"),
    ],
    vit.images,
    library="timm",
    families=vit.FAMILIES,
)
