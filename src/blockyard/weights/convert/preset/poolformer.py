"""PoolFormer's blocks, of the first stage of timm's model.

Reference: timm models/metaformer.py
"""

from __future__ import annotations

from blockyard.weights.convert import keys
from blockyard.weights.convert.preset import vit
from blockyard.weights.convert.rules import ConversionRule, block_modules, reshaped, same

PARTLY = (
    "timm's PoolFormer has four stages of their own widths, a norm over tokens and channels, and its last norm behind "
    "the mean; the preset is of one width, with a norm over channels"
)
BLOCK = "stages.0.blocks.{n}"


def _rules(values: keys.Values) -> list[ConversionRule]:
    rules = block_modules({"token_norm": "norm1", "channel_norm": "norm2"}, BLOCK)
    rules += block_modules({"channel_mixer.proj_in": "mlp.fc1", "channel_mixer.proj_out": "mlp.fc2"}, BLOCK, ["bias"])
    for ours, theirs in {"token_finish": "layer_scale1", "channel_finish": "layer_scale2"}.items():
        rules.append(same(f"blocks.{{n}}.{ours}.weight", f"{BLOCK}.{theirs}.scale"))
    dim, hidden = values["model.dim"], values["hidden"]
    for ours, theirs, shape in (("proj_in", "fc1", (hidden, dim)), ("proj_out", "fc2", (dim, hidden))):
        name = f"{BLOCK}.mlp.{theirs}.weight"
        rules.append(reshaped(f"blocks.{{n}}.channel_mixer.{ours}.weight", name, (*shape, 1, 1), shape))
    return rules


CONVERTER = keys.declared(
    "poolformer",
    "MetaFormer",
    [
        *(
            keys.whole("embed_dim", "model.dim"),
            keys.whole("depth", "model.depth"),
            keys.hidden("hidden"),
            keys.ignored("stages"),
        ),
        *(
            keys.whole("img_size", "side", is_dimension=False),
            keys.whole("in_chans", "channels"),
            keys.whole("num_classes", "classes"),
        ),
    ],
    _rules,
    vit.images,
    library="timm",
    skipped=lambda _: True,
    partly=PARTLY,
)
