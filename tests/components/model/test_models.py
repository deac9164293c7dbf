"""Architectures: what their options do to the model they build."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.config import schema
from blockyard.contracts import Inputs, Memory, Seq
from blockyard.model._prefix import Prefix
from tests.components.model.tiny_models import build_tiny
from tests.support.helpers import blocks, choices, factory, node, tiny, token_ids


def called(model: nn.Module) -> torch.Tensor:
    """What a model says of two rows, and of two sources where it reads some."""
    source = token_ids(2, 7, 1) if model.ctx.data.source else None
    return model(Inputs(token_ids(2, 6), source=source))


def having(option: str) -> list[str]:
    """Models with an option of this name."""
    return [name for name in choices("model") if option in schema.options(node("model", name)[0])]


@pytest.mark.parametrize("name", choices("model"))
def test_every_option_is_read(name: str) -> None:
    """Each option changes what is built; a decoder is causal, an encoder is not."""
    base = build_tiny(name)
    assert base.ctx.causal == node("model", name)[0].causal
    assert build_tiny(name, dim=32).ctx.dim == 32
    assert called(base).shape == (2, 6, 11)
    stds = [build_tiny(name, init_std=std).head.proj.weight.std().item() for std in (0.1, 0.2)]
    assert stds == pytest.approx([0.1, 0.2], rel=0.2)


@pytest.mark.parametrize("name", having("depth"))
def test_sizes_of_blocks(name: str) -> None:
    assert len(build_tiny(name, depth=3).blocks) == 3
    assert build_tiny(name, heads=2).blocks[0].token_mixer.heads == 2


@pytest.mark.parametrize("name", having("prefix"))
def test_registers(name: str) -> None:
    registers = build_tiny(name, prefix=Prefix(registers=3))
    assert registers.ctx.num_prefix == 3 + build_tiny(name).ctx.num_prefix
    assert called(registers).shape == (2, 6, 11)


def test_options_of_one_model() -> None:
    assert len(build_tiny("encoder_decoder", encoder_depth=3).encoder.blocks) == 3
    assert not hasattr(build_tiny("encoder_decoder").encoder, "embedder")
    assert hasattr(build_tiny("encoder_decoder", shared=False).encoder, "embedder")
    assert build_tiny("perceiver", num_latents=5).latents.vectors.shape == (5, 16)
    for name, count in (("encoder_decoder", 2), ("perceiver", 2)):
        cross = factory("token_mixer", "attention", {"num_kv_heads": 1})
        mixers = [m for m in build_tiny(name, cross=cross).modules() if getattr(m, "kv_heads", 0) == 1]
        assert len(mixers) == count
        with pytest.raises(ValueError, match=r"model\.cross: Fourier cannot read a memory"):
            build_tiny(name, cross=factory("token_mixer", "fourier"))


@pytest.mark.parametrize("name", having("dropout"))
def test_dropout_on_the_tokens(name: str) -> None:
    plain, model = build_tiny(name), build_tiny(name, dropout=0.5)
    assert_close(called(model.eval()), called(plain.eval()))
    assert not torch.allclose(called(model.train()), called(plain))


def test_heads_that_do_not_divide_are_named() -> None:
    with pytest.raises(ValueError, match=r"model\.heads=3 does not divide model\.dim=16"):
        build_tiny("encoder", heads=3)


@pytest.mark.parametrize("block", blocks())
def test_the_final_norm_is_there_where_a_block_leaves_the_stream_unnormalised(block: str) -> None:
    """What reaches the head is normalised, and not twice."""
    model = tiny(block=block, norm="layer_plain")
    steps = model.steps(token_ids(2, 6))
    size = {name: (steps[name].std(-1, correction=0) - 1).abs().max().item() for name in ("block.1", "normed")}
    assert size["normed"] < 1e-3
    assert (size["block.1"] < 1e-3) == isinstance(model.final_norm, nn.Identity)


def test_a_fused_block_over_a_memory() -> None:
    """Queries and keys come from two rows then, so that nothing is fused, and nothing changes."""
    pair = [tiny(block="parallel", options={"block": {"fused": fused}}).blocks[0] for fused in (True, False)]
    pair[1].load_state_dict(pair[0].state_dict())
    x, y = torch.randn(2, 3, 16).double(), torch.randn(2, 5, 16).double()
    facts = [Seq(torch.arange(n), torch.arange(n).double()[None, :, None]) for n in (3, 5)]
    outs = [block(x, facts[0], None, Memory(y, facts[1])) for block in pair]
    assert_close(*outs)
    other = pair[0](x, facts[0], None, Memory(y + torch.randn(16), facts[1]))
    assert not torch.allclose(outs[0], other)
