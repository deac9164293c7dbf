"""Each preset of images against timm's model with the same weights, in float64."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import pytest
import timm
import torch
from timm.models.metaformer import MetaFormerBlock, Pooling
from timm.models.mlp_mixer import GatedMlp, MlpMixer, SpatialGatingBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.testing import assert_close

from tests.components.reference.inputs import images, preset
from tests.components.reference.preset_weights import IMAGE, differ, renamed
from tests.support.helpers import stir

TIMM = {
    "norm": "final_norm",
    "head": "head.proj",
    "norm1": "token_norm",
    "norm2": "channel_norm",
    "attn.qkv": "token_mixer.proj_in",
    "attn.proj": "token_mixer.proj_out",
    "mlp.fc1": "channel_mixer.proj_in",
    "mlp.fc2": "channel_mixer.proj_out",
    "mlp_tokens.fc1": "token_mixer.expand",
    "mlp_tokens.fc2": "token_mixer.contract",
    "mlp_channels.fc1": "channel_mixer.proj_in",
    "mlp_channels.fc2": "channel_mixer.proj_out",
    "mlp_channels.gate.norm": "token_mixer.gate.norm",
    "mlp_channels.gate.proj": "token_mixer.gate",
}


def compare_images(model: nn.Module, theirs: nn.Module, names: Mapping[str, str], patches: str) -> None:
    """Copies timm's weights and compares predictions for images."""
    stir(theirs).double().eval()
    weights = theirs.state_dict()
    copied = renamed(weights, names, r"blocks\.(\d+)")
    copied["embedder.proj.weight"] = weights[f"{patches}.proj.weight"].flatten(1)
    copied["embedder.proj.bias"] = weights[f"{patches}.proj.bias"]
    if "pos_embed" in weights:
        copied |= {"position.table": weights["pos_embed"][0], "prefix.class_token": weights["cls_token"][0]}
    model.load_state_dict(copied)
    expected = theirs(images())
    assert_close(model(images()), expected)
    differ(model, lambda: model(images()), expected)


def test_vit() -> None:
    theirs = VisionTransformer(8, 2, 1, num_classes=10, embed_dim=16, depth=2, num_heads=4, no_embed_class=True)
    compare_images(preset("preset=vit", *IMAGE), theirs, TIMM, "patch_embed")


def test_mixer() -> None:
    theirs = MlpMixer(num_classes=10, img_size=8, in_chans=1, patch_size=2, num_blocks=2, embed_dim=16)
    compare_images(preset("preset=mixer", *IMAGE), theirs, TIMM, "stem")


def test_gmlp() -> None:
    theirs = MlpMixer(
        num_classes=10,
        img_size=8,
        in_chans=1,
        patch_size=2,
        num_blocks=2,
        embed_dim=16,
        mlp_ratio=6,
        block_layer=SpatialGatingBlock,
        mlp_layer=GatedMlp,
    )
    names = TIMM | {
        "norm": "final_norm",
        "mlp_channels.fc1": "token_mixer.proj_in",
        "mlp_channels.fc2": "token_mixer.proj_out",
    }
    gates = {f"blocks.{n}.norm": f"blocks.{n}.token_norm" for n in range(2)}
    stir(theirs).double().eval()
    inner = {"norm": "token_norm"}
    weights = {k: v for k, v in theirs.state_dict().items() if re.fullmatch(r"blocks\.\d+\.norm\..+", k)}
    assert len(gates) * 2 == len(weights)
    model = preset("preset=gmlp", *IMAGE)
    rest = {k: v for k, v in theirs.state_dict().items() if k not in weights}
    copied = renamed(rest, names, r"blocks\.(\d+)") | renamed(weights, inner, r"blocks\.(\d+)")
    copied["embedder.proj.weight"] = rest["stem.proj.weight"].flatten(1)
    copied["embedder.proj.bias"] = rest["stem.proj.bias"]
    model.load_state_dict(copied)
    expected = theirs(images())
    assert_close(model(images()), expected)
    differ(model, lambda: model(images()), expected)


def test_poolformers_blocks() -> None:
    """timm's blocks on feature maps; we do not have its stages and its norm over tokens and channels."""
    model = preset("preset=poolformer", *IMAGE)
    norm = partial(ChannelNorm, eps=1e-5)
    theirs = nn.Sequential(
        *(
            MetaFormerBlock(16, Pooling, mlp_act=nn.GELU, mlp_bias=True, norm_layer=norm, layer_scale_init_value=1e-5)
            for _ in range(2)
        )
    )
    assert_close(model.blocks[1].token_finish.weight.float(), theirs[1].layer_scale1.scale)
    stir(theirs).double()
    names = TIMM | {"layer_scale1": "token_finish", "layer_scale2": "channel_finish"}
    weights = {f"blocks.{name}".replace(".scale1.scale", ".weight"): v for name, v in theirs.state_dict().items()}
    copied = renamed(weights, names, r"blocks\.(\d+)")
    copied = {name.replace("finish.scale", "finish.weight"): value for name, value in copied.items()}
    copied = {k: v.flatten(1) if v.ndim == 4 else v for k, v in copied.items()}
    model.load_state_dict(model.state_dict() | copied)
    assert len(copied) == sum(path.startswith("blocks") for path in model.state_dict())
    steps = model.steps(images())
    expected = theirs(steps["stream"].transpose(1, 2).unflatten(2, (4, 4))).flatten(2).transpose(1, 2)
    assert_close(steps["block.1"], expected)
    differ(model, lambda: model.steps(images())["block.1"], expected)


def test_cnn() -> None:
    """The features of timm's classifier, and its predictions where the projection to model.dim is the identity."""
    model = preset("preset=cnn", "data=digits", sizes=["model.dim=512", "logger=none"])
    theirs = stir(timm.create_model("resnet10t", in_chans=1, num_classes=10)).double().eval()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean += 0.1
    weights = theirs.state_dict()
    backbone = {name: value for name, value in weights.items() if not name.startswith("fc.")}
    model.embedder.network.load_state_dict(backbone)
    pictures = torch.rand(2, 1, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    features = theirs.forward_features(pictures)
    assert features.shape == (2, 512, 2, 2)
    assert_close(model.embedder.network(pictures)[0], features)
    with torch.no_grad():
        model.embedder.proj.weight.copy_(torch.eye(512))
        model.embedder.proj.bias.zero_()
    model.head.proj.load_state_dict({"weight": weights["fc.weight"], "bias": weights["fc.bias"]})
    expected = theirs(pictures)
    assert_close(model(pictures), expected)
    with torch.no_grad():
        model.embedder.network.layer4[0].conv1.weight[::2] += 0.5
    with pytest.raises(AssertionError):
        assert_close(model(pictures), expected)


class ChannelNorm(nn.LayerNorm):
    """torch's layer norm over the channels of an image (B, C, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, height, width) -> the same shape."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)
