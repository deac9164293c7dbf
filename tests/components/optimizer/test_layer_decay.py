"""Layer-wise learning rates: lower towards the input, as BEiT and timm define them, and resumed as they were."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay
from torch import nn

from blockyard.config import build
from blockyard.config.compose import compose
from blockyard.model._layer_numbers import layer_numbers

DEPTH, LR, DECAY = 3, 0.01, 0.5
VIT = ("model.dim=16", f"model.depth={DEPTH}", "model.heads=2", "model.prefix.class_token=true", "head=class_token")


def components(*overrides: str) -> build.Components:
    composed = compose([*VIT, *overrides])
    assert not composed.issues, composed.issues
    return build.Components(composed.config)


def rates(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, float]:
    """The learning rate of each parameter, by its name."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon", "torch_optim", "timm_optim"])
def test_rates_fall_with_each_layer_as_timm_lays_them_out(optimizer: str) -> None:
    ours = components(f"optimizer={optimizer}", f"optimizer.lr={LR}", f"optimizer.layer_decay={DECAY}")
    model = ours.model(0)
    actual = rates(ours.optimizer.build(model), model)
    theirs = timm.create_model("vit_tiny_patch16_224", depth=DEPTH, num_classes=10)
    names = {id(p): name for name, p in theirs.named_parameters()}
    groups = param_groups_layer_decay(theirs, layer_decay=DECAY)
    scale = {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}
    same = {"embedder": "patch_embed", "position": "pos_embed", "prefix": "cls_token", "head": "head"}
    assert actual.keys() == dict(model.named_parameters()).keys()
    for name, rate in actual.items():
        first = name.split(".")[0]
        block = re.match(r"blocks\.\d+\.", name)
        if first == "final_norm":  # which BEiT gives the rate of the head, and timm that of the last block
            assert rate == LR
            continue
        like = block.group() if block else same[first]
        (expected,) = {value for other, value in scale.items() if other.startswith(like)}
        assert rate == pytest.approx(LR * expected)


def test_the_layers_of_an_encoder_come_before_those_of_its_decoder() -> None:
    translation = ("data=translation", "tokenizer=char", "head=token", "objective=translate", "model=encoder_decoder")
    composed = compose([*translation, "model.dim=16", "model.heads=2", "model.depth=2"])
    assert not composed.issues, composed.issues
    model = build.Components(composed.config).meta_model()
    numbers = layer_numbers(model)
    of_block = {
        matched.group(): each for name, each in numbers.items() if (matched := re.match(r".*blocks\.\d+", name))
    }
    assert of_block == {"encoder.blocks.0": 1, "encoder.blocks.1": 2, "blocks.0": 3, "blocks.1": 4}
    others = {name.rpartition(".")[0]: each for name, each in numbers.items() if "blocks." not in name}
    assert others == {
        "embedder.symbols": 0,
        "position": 0,
        "final_norm": 5,
        "encoder.final_norm": 5,
        "head.proj": 5,
    } | {name: 0 for name in others if name.startswith(("encoder.embedder", "encoder.position"))}


def test_all_that_makes_the_first_stream_comes_before_the_first_block() -> None:
    text = ("experiment=gpt_code_small", "model.embed_norm=true", "model.ngrams=[2]", "model.smear=true")
    composed = compose([*text, "model.dim=16", "model.heads=2", "model.depth=1"])
    assert not composed.issues, composed.issues
    numbers = layer_numbers(build.Components(composed.config).meta_model())
    assert {name.split(".")[0] for name, each in numbers.items() if each == 0} >= {
        "embedder",
        "embed_norm",
        "ngrams",
        "smear",
    }
    assert {name.split(".")[0] for name, each in numbers.items() if each == 2} == {"final_norm"}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon", "torch_optim", "timm_optim"])
def test_a_factor_of_one_changes_no_group(optimizer: str) -> None:
    plain, one = components(f"optimizer={optimizer}"), components(f"optimizer={optimizer}", "optimizer.layer_decay=1.0")
    model = plain.model(0)
    groups = [each.optimizer.build(model).param_groups for each in (plain, one)]
    assert [len(each["params"]) for each in groups[0]] == [len(each["params"]) for each in groups[1]]
    assert len(groups[0]) == (3 if optimizer == "muon" else 2)
