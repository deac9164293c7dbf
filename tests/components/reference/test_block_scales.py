"""How blocks scale a branch: LayerScale of timm, the constants of the DeepNet paper, ReZero."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Block as TimmBlock
from torch import nn
from torch.testing import assert_close

from blockyard.block.deepnorm import DeepNorm, constants
from blockyard.weight_init import initialise
from tests.components.reference.inputs import sequence
from tests.support.helpers import context, factory, stir, tiny

D = 16


X = torch.randn(2, 6, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_layer_scale_is_timms() -> None:
    options = {
        "token_mixer": {"bias": True},
        "channel_mixer": {"bias": True},
        "norm": {"eps": 1e-6},
        "block": {"start": 1e-5},
    }
    block = tiny(block="layer_scale", options=options).blocks[0]
    theirs = TimmBlock(D, 4, qkv_bias=True, init_values=1e-5, norm_layer=partial(nn.LayerNorm, eps=1e-6)).double()
    pairs = {
        "norm1": block.token_norm,
        "attn.qkv": block.token_mixer.proj_in,
        "attn.proj": block.token_mixer.proj_out,
        "norm2": block.channel_norm,
        "mlp.fc1": block.channel_mixer.proj_in,
        "mlp.fc2": block.channel_mixer.proj_out,
    }
    for name, ours in pairs.items():
        theirs.get_submodule(name).load_state_dict(ours.state_dict())
    assert_close(theirs.ls1.gamma.float(), initialise(block, 0).token_finish.weight.float())
    stir(theirs)
    stir(block)
    for name, ours in pairs.items():
        theirs.get_submodule(name).load_state_dict(ours.state_dict())
    with torch.no_grad():
        theirs.ls1.gamma.copy_(block.token_finish.weight)
        theirs.ls2.gamma.copy_(block.channel_finish.weight)
    assert_close(block(X, sequence(6)), theirs(X))
    with torch.no_grad():
        theirs.ls2.gamma.copy_(block.token_finish.weight * 1.1)
    with pytest.raises(AssertionError):
        assert_close(block(X, sequence(6)), theirs(X))


@pytest.mark.parametrize(("depth", "start"), [(18, 0.1), (24, 1e-5), (36, 1e-6)])
def test_layer_scale_starts_by_depth(depth: int, start: float) -> None:
    """Touvron et al., section 2: deeper models start smaller."""
    block = factory("block", "layer_scale")(
        context(depth=depth), *(factory(f, n) for f, n in (("token_mixer", "pool"), ("channel_mixer", "mlp"))), nn_norm
    )
    assert initialise(block, 0).channel_finish.weight.unique().tolist() == pytest.approx([start])


def nn_norm(ctx: Any) -> nn.Module:
    """torch's layer norm."""
    return nn.LayerNorm(ctx.dim)


@pytest.mark.parametrize(
    ("sizes", "alpha", "beta"),
    [
        # Figure 2 of Wang et al. 2022, by hand for integer roots.
        ({"depth": 8}, 2.0, 64**-0.25),
        ({"depth": 128, "causal": True}, 4.0, 1024**-0.25),
        ({"depth": 2, "peer": 2}, 0.81 * 32 ** (1 / 16), 0.87 / 32 ** (1 / 16)),
        ({"depth": 27, "peer": 3, "causal": True}, 3.0, 324**-0.25),
        ({"depth": 6, "peer": 6}, 1.4179, 0.4970),  # base models of 6 and 6
        ({"depth": 6, "peer": 6, "causal": True}, 2.0598, 0.3433),
    ],
)
def test_deepnorm_constants(sizes: dict[str, Any], alpha: float, beta: float) -> None:
    peer = sizes.pop("peer", None)
    matches = constants(replace(context(**sizes), peer=peer))
    assert matches == pytest.approx((alpha, beta), rel=1e-4)


def test_deepnorm_starts_smaller() -> None:
    """Values, hidden layers and outputs by beta, queries and keys not; in other blocks outputs by sqrt(2 depth)."""
    plain, deep_ = (initialise(tiny(block=name), 0).blocks[1] for name in ("pre_norm", "deepnorm"))
    beta = 16**-0.25
    assert isinstance(deep_, DeepNorm)
    q, k, v = deep_.token_mixer.proj_in.weight.chunk(3)
    plain_q, plain_k, plain_v = plain.token_mixer.proj_in.weight.chunk(3)
    assert_close((q, k, v), (plain_q, plain_k, plain_v * beta))
    assert_close(deep_.channel_mixer.proj_in.weight, plain.channel_mixer.proj_in.weight * beta)
    for mixer in ("token_mixer", "channel_mixer"):
        ours, theirs = (getattr(block, mixer).proj_out.weight for block in (deep_, plain))
        assert_close(ours, theirs * beta * 2.0)


def test_deepnorm_refuses_other_memories() -> None:
    block = tiny(block="deepnorm").blocks[0]
    with pytest.raises(ValueError, match="use block=pre_norm"):
        block.add_cross(context(), factory("token_mixer", "attention"), factory("norm", "layer"))


def test_rezero_starts_as_the_identity() -> None:
    model = initialise(tiny(block="rezero", norm="none"), 0)
    for block in model.blocks:
        assert_close(block(X, sequence(6)), X, rtol=0, atol=0)
    block(X, sequence(6)).sum().backward()
    assert block.token_finish.weight.grad.item() != 0
