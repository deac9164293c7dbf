"""Encoder-decoder with copied weights against torch.nn.Transformer: its blocks, and the whole model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.contracts import DataSpec, Inputs, Parts, TokenSpec
from blockyard.model.encoder_decoder import EncoderDecoder
from blockyard.weight_init import initialise
from tests.components.reference.inputs import preset
from tests.support.helpers import TinyEmbedder, factory, stir, token_ids


def pair(norm_first: bool) -> tuple[nn.Module, nn.Transformer]:
    """Our encoder-decoder, and torch's Transformer with the weights of our blocks."""
    plan = EncoderDecoder(
        dim=16, depth=3, encoder_depth=2, heads=4, cross=factory("token_mixer", "attention", {"bias": True})
    )
    data = DataSpec("text", (6,), variable=True, source=DataSpec("text", (7,)))
    ctx = plan.context(data, TokenSpec((6,), vocabulary=11, variable=True), 11)
    parts = Parts(
        embedder=TinyEmbedder,
        position=factory("position", "sinusoidal"),
        token_mixer=factory("token_mixer", "attention", {"bias": True}),
        channel_mixer=factory("channel_mixer", "mlp", {"bias": True, "activation": "relu"}),
        norm=factory("norm", "layer"),
        block=factory("block", "pre_norm" if norm_first else "post_norm"),
        head=factory("head", "token"),
    )
    ours = stir(initialise(plan.build(ctx, parts), 0)).double().eval()
    theirs = nn.Transformer(16, 4, 2, 3, 64, 0.0, batch_first=True, norm_first=norm_first).double().eval()
    for stack, mine in ((theirs.encoder, ours.encoder), (theirs.decoder, ours)):
        # torch applies one more norm at the end of each stack, with any layer.
        stack.norm = stack.norm if norm_first else None
        if norm_first:
            stack.norm.load_state_dict(mine.final_norm.state_dict())
        for layer, block in zip(stack.layers, mine.blocks, strict=True):
            copy_layer(layer, block)
    return ours, theirs


@torch.no_grad()
def copy_layer(layer: nn.Module, block: nn.Module) -> None:
    """Copies the weights of one of our blocks to torch's names."""
    crossing = block.cross_mixer is not None
    attentions = [(layer.self_attn, block.token_mixer)]
    norms = [(layer.norm1, block.token_norm)]
    if crossing:
        attentions.append((layer.multihead_attn, block.cross_mixer))
        norms += [(layer.norm2, block.cross_norm), (layer.norm3, block.channel_norm)]
    else:
        norms.append((layer.norm2, block.channel_norm))
    for theirs, mine in attentions:
        theirs.in_proj_weight.copy_(mine.proj_in.weight)
        theirs.in_proj_bias.copy_(mine.proj_in.bias)
        theirs.out_proj.load_state_dict(mine.proj_out.state_dict())
    for theirs, mine in norms:
        theirs.load_state_dict(mine.state_dict())
    layer.linear1.load_state_dict(block.channel_mixer.proj_in.state_dict())
    layer.linear2.load_state_dict(block.channel_mixer.proj_out.state_dict())


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer(norm_first: bool) -> None:
    ours, theirs = pair(norm_first)
    inputs, source = token_ids(2, 6), token_ids(2, 7, 1)
    lengths = torch.tensor([4, 7])
    steps = ours.steps(Inputs(inputs, source=source, source_lengths=lengths))
    hidden = torch.arange(7) >= lengths[:, None]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)

    def expected() -> torch.Tensor:
        return theirs(
            steps["source.placed"],
            steps["placed"],
            tgt_mask=future,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )

    assert_close(steps["normed"], expected())
    theirs.decoder.layers[1].multihead_attn.in_proj_bias[-3:] += 1.0
    with pytest.raises(AssertionError):
        assert_close(steps["normed"], expected())


def original(ours: nn.Module, blocks: nn.Transformer, inputs: Tensor, source: Tensor, lengths: Tensor) -> Tensor:
    """Section 3 of the paper around torch's blocks: one table, scaled for inputs and not for outputs."""
    table = ours.embedder.table
    dim = table.shape[1]

    def embed(token_ids: Tensor) -> Tensor:
        encoding = torch.zeros(token_ids.shape[1], dim, dtype=torch.float64)
        for index in range(token_ids.shape[1]):
            for pair in range(dim // 2):
                angle = index / 10000 ** (2 * pair / dim)
                encoding[index, 2 * pair], encoding[index, 2 * pair + 1] = math.sin(angle), math.cos(angle)
        return table[token_ids] * math.sqrt(dim) + encoding

    hidden = torch.arange(source.shape[1]) >= lengths[:, None]
    future = torch.ones(inputs.shape[1], inputs.shape[1], dtype=torch.bool).triu(1)
    masks = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
    return blocks(embed(source), embed(inputs), tgt_mask=future, **masks) @ table.T


@torch.no_grad()
def test_the_preset_from_token_ids() -> None:
    ours = stir(preset("preset=original_transformer", "data=translation"))
    theirs = nn.Transformer(16, 4, 2, 2, 64, 0.0, batch_first=True).double().eval()
    for stack, mine in ((theirs.encoder, ours.encoder), (theirs.decoder, ours)):
        stack.norm = None  # each layer ends in one
        for layer, block in zip(stack.layers, mine.blocks, strict=True):
            copy_layer(layer, block)
    inputs, source, lengths = token_ids(2, 6), token_ids(2, 7, 1), torch.tensor([4, 7])
    expected = original(ours, theirs, inputs, source, lengths)
    assert_close(ours(Inputs(inputs, source=source, source_lengths=lengths)), expected)
    assert {name.partition(".")[0] for name, _ in ours.named_parameters()} == {"embedder", "blocks", "encoder"}
    plain = preset("preset=original_transformer", "data=translation", "tokenizer.scale=one")
    plain.load_state_dict(ours.state_dict())
    with pytest.raises(AssertionError):
        assert_close(plain(Inputs(inputs, source=source, source_lengths=lengths)), expected)
