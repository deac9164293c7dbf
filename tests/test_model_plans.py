"""Architectures: what their options do to the model they build."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.contracts import Context, DataSpec, Memory, Parts, Seq, TokenSpec
from blockyard.init import initialise
from blockyard.model._prefix import Prefix
from tests.helpers import TinyEmbedder, choices, factory, node, symbols, tiny

PICKS = {"position": "learned", "token_mixer": "attention", "channel_mixer": "mlp", "norm": "layer"}


def planned(name: str, **options: object) -> nn.Module:
    """A model as `train` builds it, from a plan."""
    plan = node("model", name)[0](**{"dim": 16, "depth": 2, "heads": 4, **options})
    ctx: Context = plan.context(DataSpec("text", (6,)), TokenSpec((6,), vocabulary=11), 11)
    made = {family: factory(family, pick) for family, pick in (PICKS | {"block": "pre_norm", "head": "token"}).items()}
    return initialise(plan.build(ctx, Parts(embedder=TinyEmbedder, **made)), 0)


@pytest.mark.parametrize("name", choices("model"))
def test_every_option_is_read(name: str) -> None:
    """Each option changes what is built; a decoder is causal, an encoder is not."""
    base = planned(name)
    assert base.ctx.causal == node("model", name)[0].causal
    assert planned(name, dim=32).ctx.head_dim == 8
    assert len(planned(name, depth=3).blocks) == 3
    assert planned(name, heads=2).blocks[0].token_mixer.heads == 2
    spread = [planned(name, init_std=std).blocks[0].token_mixer.proj_in.weight.std().item() for std in (0.1, 0.2)]
    assert spread == pytest.approx([0.1, 0.2], rel=0.1)
    registers = planned(name, prefix=Prefix(registers=3))
    assert registers.ctx.num_prefix == 3
    assert registers(symbols(2, 6)).shape == (2, 6, 11)


@pytest.mark.parametrize("name", choices("model"))
def test_dropout_on_the_tokens(name: str) -> None:
    plain, model = planned(name), planned(name, dropout=0.5)
    inputs = symbols(2, 6)
    assert_close(model.eval()(inputs), plain.eval()(inputs))
    assert not torch.allclose(model.train()(inputs), plain(inputs))


def test_heads_that_do_not_divide_are_named() -> None:
    with pytest.raises(ValueError, match=r"model\.heads=3 does not divide model\.dim=16"):
        planned("encoder", heads=3)


@pytest.mark.parametrize("block", choices("block"))
def test_the_final_norm_is_there_where_a_block_leaves_the_stream_unnormalised(block: str) -> None:
    """What reaches the head is normalised, and not twice."""
    model = tiny(block=block, norm="layer_plain")
    steps = model.steps(symbols(2, 6))
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
