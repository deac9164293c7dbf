"""Models of timm: the same predictions as imported, and as `timm.create_model(checkpoint_path=)` reads them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

from blockyard.config.build import Components
from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.errors import UserError
from blockyard.runs.load import load
from blockyard.weights.convert.exporting import export_weights
from blockyard.weights.convert.importing import import_weights
from tests.support.helpers import stir
from tests.support.image_files import write_images
from tests.support.tolerances import FLOAT32_STEPS

SMALL = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10, "embed_dim": 16, "depth": 2, "num_heads": 4}
# timm's names fix the sizes of a Mixer and a gMLP; these are its smallest, on small images.
CASES = {
    "vit": ("vit_tiny_patch16_224", SMALL),
    "vit of registers": ("vit_tiny_patch16_224", SMALL | {"reg_tokens": 2, "no_embed_class": True}),
    "dinov2": ("vit_tiny_patch16_224", SMALL | {"init_values": 0.1}),
    "dinov2 of registers": (
        "vit_tiny_patch16_224",
        SMALL | {"init_values": 0.1, "reg_tokens": 2, "no_embed_class": True},
    ),
    "vit of the mean": (
        "vit_tiny_patch16_224",
        SMALL | {"class_token": False, "global_pool": "avg", "fc_norm": False, "mlp_ratio": 3},
    ),
    "mixer": ("mixer_s32_224", {"img_size": 64, "num_classes": 2}),
    "gmlp": ("gmlp_ti16_224", {"img_size": 32, "num_classes": 2}),
}


def write(folder: Path, name: str, arguments: dict[str, Any]) -> nn.Module:
    """A model of timm with random weights, in a file with its config."""
    model = timm.create_model(name, **arguments).eval()
    (stir if arguments["num_classes"] == 10 else move)(model)  # thirty blocks with large weights have no precision
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architecture": name, "model_args": arguments}))
    return model


@torch.no_grad()
def move(model: nn.Module) -> nn.Module:
    """Changes every parameter a little."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model


@torch.no_grad()
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(2)
def test_both_ways(case: str, tmp_path: Path) -> None:
    name, arguments = CASES[case]
    theirs = write(tmp_path / "theirs", name, arguments)
    side, channels = arguments["img_size"], arguments.get("in_chans", 3)
    pictures = torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = theirs.double()(pictures)
    data = ["data=digits"]
    if channels == 3:
        write_images(tmp_path / "photos", {"train": 2})
        data = ["data=image_folder", f"data.root={tmp_path / 'photos'}", f"data.size={side}"]
    imported = import_weights(tmp_path / "theirs", tmp_path / "ours", overrides=data)
    loaded = load(imported.folder)
    # The weights are float32: an import adds the class token's position to the token itself in that type.
    assert_close(loaded.model.double()(pictures), expected, **FLOAT32_STEPS)
    move(loaded.model.float())
    exported = export_weights(loaded, tmp_path / "back", kind="timm")
    ours = loaded.model.double()(pictures)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    path = tmp_path / "back" / "model.safetensors"
    again = timm.create_model(config["architecture"], checkpoint_path=str(path), **config["model_args"]).eval().double()
    assert_close(again(pictures), ours, **FLOAT32_STEPS)
    with pytest.raises(AssertionError):
        assert_close(again(pictures), expected, **FLOAT32_STEPS)
    assert str(path) in exported.lines[0]


@pytest.mark.parametrize("case", ["vit", "dinov2", "mixer"])
def test_a_model_without_a_head_is_a_part_of_a_run(case: str, tmp_path: Path) -> None:
    """Such as the released DINOv2: its weights start the blocks of a run."""
    name, arguments = CASES[case]
    write(tmp_path / "theirs", name, arguments | {"num_classes": 0})
    imported = import_weights(tmp_path / "theirs", tmp_path / "ours")
    assert not imported.loads
    assert imported.missing == ["head.proj.weight", "head.proj.bias"]
    with pytest.raises(UserError, match="it has no head"):
        import_weights(tmp_path / "theirs", tmp_path / "other", overrides=["data=digits"])
    if case == "mixer":
        return
    sizes = [*imported.source.foreign.overrides, "data=digits", "logger=none"]
    composed = compose([f"preset={case}", *sizes, f"init.from=timm:{tmp_path / 'theirs'}"])
    assert not check(composed)
    components = Components(composed.config)
    model = components.model(0)
    components.node("init").load(components, model)
    ours, theirs = model.state_dict(), load_file(tmp_path / "ours" / "model.safetensors")
    assert theirs.keys() == ours.keys() - {"head.proj.weight", "head.proj.bias"}
    for name, value in theirs.items():
        assert_close(ours[name], value, rtol=0, atol=0)


@pytest.mark.full
@torch.no_grad()
def test_the_number_of_heads_does_not_matter_without_heads(tmp_path: Path) -> None:
    name, arguments = CASES["mixer"]
    write(tmp_path / "theirs", name, arguments)
    write_images(tmp_path / "photos", {"train": 2})
    data = ["data=image_folder", f"data.root={tmp_path / 'photos'}", "data.size=64", "model.heads=2"]
    imported = import_weights(tmp_path / "theirs", tmp_path / "ours", overrides=data)
    assert export_weights(load(imported.folder), tmp_path / "back", kind="timm").folder.is_dir()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"qk_norm": True}, "qk_norm"),
        ({"pre_norm": True}, "norm_pre"),
        ({"global_pool": "avg"}, "fc_norm"),
        ({"act_layer": "relu"}, "act='ReLU'"),
        ({"pos_embed": "none"}, "pos_embed"),
        ({"qkv_bias": False}, "qkv_bias"),
        ({"patches": 3}, "cannot build"),
    ],
)
def test_features_without_a_counterpart(arguments: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    write(folder, "vit_tiny_patch16_224", SMALL)
    config = {"architecture": "vit_tiny_patch16_224", "model_args": SMALL | arguments}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=reason):
        import_weights(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.full
def test_a_file_and_a_name(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=1000)
    save_file(model.state_dict(), tmp_path / "vit.safetensors")
    imported = import_weights(tmp_path / "vit.safetensors", tmp_path / "ours", timm="vit_tiny_patch16_224")
    assert not imported.loads  # no data has these classes
    assert imported.source.converter.preset == "vit"
    with pytest.raises(UserError, match="timm=NAME"):
        import_weights(tmp_path / "vit.safetensors", tmp_path / "other")
    with pytest.raises(UserError, match="did you mean"):
        import_weights(tmp_path / "vit.safetensors", tmp_path / "other", timm="vit_tiny_patch16_22")
    with pytest.raises(UserError, match="is like preset=vit"):
        import_weights(tmp_path / "vit.safetensors", tmp_path / "other", timm="vit_tiny_patch16_224", preset="mixer")
