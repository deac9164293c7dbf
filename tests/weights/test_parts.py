"""Presets whose library's model holds a part of ours: the part is imported, and nothing is exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    GitConfig,
    GitForCausalLM,
    PerceiverConfig,
    PerceiverModel,
    ViltConfig,
    ViltForQuestionAnswering,
)

from blockyard.errors import UserError
from blockyard.weights.convert.converter import Trained, converters
from blockyard.weights.convert.importing import Imported, import_weights
from blockyard.weights.convert.matching import match
from blockyard.weights.convert.rules import convert_back

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "hidden_size": 16}
VISION = LAYERS | {"image_size": 24, "patch_size": 8}


def perceiver() -> nn.Module:
    config = PerceiverConfig(
        num_latents=3,
        d_latents=16,
        d_model=16,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
    )
    return PerceiverModel(config)


def git() -> nn.Module:
    return GitForCausalLM(GitConfig(vision_config=VISION, vocab_size=40, max_position_embeddings=9, **LAYERS))


def vilt() -> nn.Module:
    return ViltForQuestionAnswering(ViltConfig(**VISION, vocab_size=40, max_position_embeddings=9))


MODELS = {"perceiver": perceiver, "git": git, "vilt": vilt}
# Weights of theirs and of ours that are the same.
PAIRS = {
    "perceiver": ("embeddings.latents", "latents.vectors"),
    "git": ("git.encoder.layer.1.output.dense.weight", "blocks.1.channel_mixer.proj_out.weight"),
    "vilt": ("vilt.encoder.layer.1.output.dense.weight", "blocks.1.channel_mixer.proj_out.weight"),
    "poolformer": ("stages.0.blocks.1.layer_scale1.scale", "blocks.1.token_finish.weight"),
}


def compared(name: str, theirs: Path, imported: Imported) -> None:
    """The blocks came over, the rest is named as missing, and there is no run."""
    assert not imported.loads
    ours, theirs_weights = load_file(imported.folder / "model.safetensors"), load_file(theirs)
    source, target = PAIRS[name]
    assert torch.equal(ours[target], theirs_weights[source])
    assert imported.missing
    assert not any("blocks" in weight for weight in imported.missing)
    facts = json.loads((imported.folder / "import.json").read_text())
    assert facts["missing"] == imported.missing
    # The names lead back to theirs, each of which was read.
    rules = imported.source.foreign.rules
    back = convert_back(rules, ours)
    assert set(back) == {name for rule in rules for name in rule.library_names}
    for weight, value in back.items():
        whole = imported.source.weights[weight]
        assert torch.equal(value, whole[: len(value)]), weight  # ViLT's third type is that of a second image
    with pytest.raises(UserError, match="has no effect"):
        import_weights(theirs.parent, imported.folder.with_name("other"), preset=name, overrides=["data=digits"])


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_transformers(name: str, tmp_path: Path) -> None:
    MODELS[name]().save_pretrained(tmp_path / "theirs")
    imported = import_weights(tmp_path / "theirs", tmp_path / "ours", preset=name)
    compared(name, tmp_path / "theirs" / "model.safetensors", imported)


def test_parts_of_poolformer(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    path = tmp_path / "theirs" / "model.safetensors"
    save_file(timm.create_model("poolformer_s12", num_classes=4).state_dict(), path)
    (path.parent / "config.json").write_text('{"architecture": "poolformer_s12", "num_classes": 4}')
    compared("poolformer", path, import_weights(tmp_path / "theirs", tmp_path / "ours"))


def test_none_is_exported() -> None:
    partly = {name: each for name, each in converters().items() if each.partly}
    assert set(partly) == set(PAIRS)
    for name, each in partly.items():
        with pytest.raises(UserError, match=each.partly[:30]):
            match(Trained({}, None, {}), each.library, name)
