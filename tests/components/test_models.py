"""Architectures: what their options do to the model they build."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.config import schema
from blockyard.contracts import Context, DataSpec, Memory, Parts, Seq, TokenSpec
from blockyard.model._prefix import Prefix
from blockyard.weight_init import initialise
from tests.helpers import TinyEmbedder, blocks, choices, factory, node, tiny, token_ids

PICKS = {"position": "learned", "token_mixer": "attention", "channel_mixer": "mlp", "norm": "layer"}


def planned(name: str, **options: object) -> nn.Module:
    """A model as `train` builds it, from a plan; of sizes those that it has."""
    target = node("model", name)[0]
    sizes = {"dim": 16, "depth": 2, "heads": 4, **options}
    plan = target(**{key: value for key, value in sizes.items() if key in schema.options(target)})
    data = DataSpec("text", (6,), source=(7,) if target.takes_source else None)
    ctx: Context = plan.context(data, TokenSpec((6,), vocabulary=11), 11)
    picks = PICKS | {"block": "pre_norm", "head": "token"}
    made = {family: factory(family, pick) for family, pick in picks.items()}
    return initialise(plan.build(ctx, Parts(embedder=TinyEmbedder, **made)), 0)


def called(model: nn.Module) -> torch.Tensor:
    """What a model says of two rows, and of two sources where it reads some."""
    source = {"source": token_ids(2, 7, 1)} if model.ctx.data.source else {}
    return model(token_ids(2, 6), **source)


def having(option: str) -> list[str]:
    """Models with an option of this name."""
    return [name for name in choices("model") if option in schema.options(node("model", name)[0])]


@pytest.mark.parametrize("name", choices("model"))
def test_every_option_is_read(name: str) -> None:
    """Each option changes what is built; a decoder is causal, an encoder is not."""
    base = planned(name)
    assert base.ctx.causal == node("model", name)[0].causal
    assert planned(name, dim=32).ctx.dim == 32
    assert called(base).shape == (2, 6, 11)
    stds = [planned(name, init_std=std).head.proj.weight.std().item() for std in (0.1, 0.2)]
    assert stds == pytest.approx([0.1, 0.2], rel=0.2)


@pytest.mark.parametrize("name", having("depth"))
def test_sizes_of_blocks(name: str) -> None:
    assert len(planned(name, depth=3).blocks) == 3
    assert planned(name, heads=2).blocks[0].token_mixer.heads == 2


@pytest.mark.parametrize("name", having("prefix"))
def test_registers(name: str) -> None:
    registers = planned(name, prefix=Prefix(registers=3))
    assert registers.ctx.num_prefix == 3
    assert registers(token_ids(2, 6)).shape == (2, 6, 11)


def test_options_of_one_model() -> None:
    assert len(planned("encoder_decoder", encoder_depth=3).encoder.blocks) == 3
    assert not hasattr(planned("encoder_decoder").encoder, "embedder")
    assert hasattr(planned("encoder_decoder", shared=False).encoder, "embedder")
    assert planned("perceiver", num_latents=5).latents.vectors.shape == (5, 16)
    for name, count in (("encoder_decoder", 2), ("perceiver", 2)):
        cross = factory("token_mixer", "attention", {"num_kv_heads": 1})
        mixers = [m for m in planned(name, cross=cross).modules() if getattr(m, "kv_heads", 0) == 1]
        assert len(mixers) == count
        with pytest.raises(ValueError, match=r"model\.cross: Fourier cannot read a memory"):
            planned(name, cross=factory("token_mixer", "fourier"))


@pytest.mark.parametrize("name", having("dropout"))
def test_dropout_on_the_tokens(name: str) -> None:
    plain, model = planned(name), planned(name, dropout=0.5)
    assert_close(called(model.eval()), called(plain.eval()))
    assert not torch.allclose(called(model.train()), called(plain))


def test_heads_that_do_not_divide_are_named() -> None:
    with pytest.raises(ValueError, match=r"model\.heads=3 does not divide model\.dim=16"):
        planned("encoder", heads=3)


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
