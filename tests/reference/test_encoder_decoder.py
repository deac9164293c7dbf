"""Two rows with copied weights: torch's own Transformer."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.contracts import DataSpec, Parts, TokenSpec
from blockyard.init import initialise
from blockyard.model.encoder_decoder import EncoderDecoder
from tests.helpers import TinyEmbedder, factory, stir, symbols


def pair(norm_first: bool) -> tuple[nn.Module, nn.Transformer]:
    """Our encoder-decoder, and torch's Transformer with the weights of its blocks."""
    plan = EncoderDecoder(
        dim=16, depth=3, encoder_depth=2, heads=4, cross=factory("token_mixer", "attention", {"bias": True})
    )
    data = DataSpec("text", (6,), variable=True, source=(7,))
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
        # torch normalises the stream once more at the end of each stack, whatever its layers do.
        stack.norm = stack.norm if norm_first else None
        if norm_first:
            stack.norm.load_state_dict(mine.final_norm.state_dict())
        for layer, block in zip(stack.layers, mine.blocks, strict=True):
            copy_layer(layer, block)
    return ours, theirs


@torch.no_grad()
def copy_layer(layer: nn.Module, block: nn.Module) -> None:
    """The weights of one of our blocks, under torch's names."""
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
    inputs, source = symbols(2, 6), symbols(2, 7, 1)
    lengths = torch.tensor([4, 7])
    found = ours.steps(inputs, source=source, source_lengths=lengths)
    hidden = torch.arange(7) >= lengths[:, None]
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)

    def wanted() -> torch.Tensor:
        return theirs(
            found["source.placed"],
            found["placed"],
            tgt_mask=future,
            src_key_padding_mask=hidden,
            memory_key_padding_mask=hidden,
        )

    assert_close(found["normed"], wanted())
    theirs.decoder.layers[1].multihead_attn.in_proj_bias[-3:] += 1.0
    with pytest.raises(AssertionError):
        assert_close(found["normed"], wanted())
