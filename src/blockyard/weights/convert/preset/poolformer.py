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
    rules.append(same("blocks.{n}.token_finish.weight", f"{BLOCK}.layer_scale1.scale"))
    rules.append(same("blocks.{n}.channel_finish.weight", f"{BLOCK}.layer_scale2.scale"))
    dim, hidden = values["model.dim"], values["hidden"]
    for model_name, library_name, shape in (("proj_in", "fc1", (hidden, dim)), ("proj_out", "fc2", (dim, hidden))):
        weight = f"blocks.{{n}}.channel_mixer.{model_name}.weight"
        # The library's MLP is a convolution with a kernel of one pixel.
        rules.append(reshaped(weight, f"{BLOCK}.mlp.{library_name}.weight", (*shape, 1, 1), shape))
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
