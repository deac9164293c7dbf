"""The perceiver with copied weights against transformers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import PerceiverConfig, PerceiverModel

from blockyard.contracts import DataSpec, Inputs, Parts, TokenSpec
from blockyard.model.perceiver import Perceiver
from blockyard.weight_init import initialise
from tests.components.reference.inputs import images, preset
from tests.support.helpers import TinyEmbedder, factory, stir, token_ids


def pair() -> tuple[nn.Module, PerceiverModel]:
    """Our model, and theirs with our weights; theirs has no final norm."""
    attention = factory("token_mixer", "attention", {"bias": True})
    plan = Perceiver(dim=16, depth=2, heads=4, num_latents=3, cross=attention)
    ctx = plan.context(DataSpec("text", (6,), variable=True), TokenSpec((6,), vocabulary=11, variable=True), 11)
    parts = Parts(
        embedder=TinyEmbedder,
        position=factory("position", "none"),
        token_mixer=attention,
        channel_mixer=factory("channel_mixer", "mlp", {"bias": True}),
        norm=factory("norm", "layer", {"eps": 1e-5}),
        block=factory("block", "pre_norm"),
        head=factory("head", "mean_pool"),
    )
    ours = stir(initialise(plan.build(ctx, parts), 0)).double().eval()
    return ours, copied(ours, 4)


def copied(ours: nn.Module, widening: int) -> PerceiverModel:
    """Theirs with our weights: 16 channels, 3 latents, 2 blocks over them, 4 heads."""
    config = PerceiverConfig(
        num_latents=3,
        d_latents=16,
        d_model=16,
        num_blocks=1,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
        cross_attention_widening_factor=widening,
        self_attention_widening_factor=widening,
        attention_probs_dropout_prob=0.0,
    )
    theirs = PerceiverModel(config).double().eval()
    theirs.embeddings.latents.data.copy_(ours.latents.vectors)
    encoder = theirs.encoder
    copy_layer(encoder.cross_attention, ours.read, ours.input_norm)
    for layer, block in zip(encoder.self_attends, ours.blocks, strict=True):
        copy_layer(layer, block, None)
    return theirs


@torch.no_grad()
def copy_layer(layer: nn.Module, block: nn.Module, reads: nn.Module | None) -> None:
    """Copies the weights of one of our blocks to their names."""
    inner, mixer = layer.attention.self, block.token_mixer
    weights, biases = mixer.proj_in.weight.chunk(3), mixer.proj_in.bias.chunk(3)
    for part, weight, bias in zip((inner.query, inner.key, inner.value), weights, biases, strict=True):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    inner.layernorm1.load_state_dict(block.token_norm.state_dict())
    if reads is not None:
        inner.layernorm2.load_state_dict(reads.state_dict())
    layer.attention.output.dense.load_state_dict(mixer.proj_out.state_dict())
    layer.layernorm.load_state_dict(block.channel_norm.state_dict())
    layer.mlp.dense1.load_state_dict(block.channel_mixer.proj_in.state_dict())
    layer.mlp.dense2.load_state_dict(block.channel_mixer.proj_out.state_dict())


@torch.no_grad()
def test_perceiver() -> None:
    ours, theirs = pair()
    lengths = torch.tensor([6, 4])
    steps = ours.steps(Inputs(token_ids(2, 6), lengths=lengths))
    mask = (torch.arange(6) < lengths[:, None]).long()
    assert_close(steps["block.1"], theirs(inputs=steps["placed"], attention_mask=mask).last_hidden_state)
    ours.input_norm.weight[0] += 1.0
    with pytest.raises(AssertionError):
        assert_close(ours.steps(Inputs(token_ids(2, 6), lengths=lengths))["block.1"], steps["block.1"])


@torch.no_grad()
def test_the_preset_from_pixels_to_predictions() -> None:
    """Embedding by hand, their layers, then norm, pooling and head by hand."""
    overrides = ["data=digits", "model.num_latents=3", "position.width=8"]
    ours = stir(preset("preset=perceiver", *overrides))
    pixels = images()
    tokens = pixels.flatten(2).transpose(1, 2) * ours.embedder.proj.weight[:, 0] + ours.embedder.proj.bias  # (B, N, 8)
    waves = []
    for index in range(64):
        angles = [(axis, axis / 100) for axis in divmod(index, 8)]  # 10000^0 and 10000^(-1/2)
        waves.append([wave(angle) / 4 for pair in angles for wave in (math.sin, math.cos) for angle in pair])
    code = torch.tensor(waves, dtype=torch.float64).expand(2, -1, -1)  # as high as fresh tokens, 16^(-1/2)
    latents = copied(ours, 1)(inputs=torch.cat([tokens, code], -1)).last_hidden_state
    scaled = (latents - latents.mean(-1, keepdim=True)) / (latents.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    mean = (scaled * ours.final_norm.weight + ours.final_norm.bias).mean(1)
    expected = mean @ ours.head.proj.weight.T + ours.head.proj.bias
    assert_close(ours(pixels), expected)
    ours.latents.vectors[0, 0] += 1.0
    with pytest.raises(AssertionError):
        assert_close(ours(pixels), expected)
