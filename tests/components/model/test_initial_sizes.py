"""How large weights start: what writes into the stream listens to the block around it and counts its branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from blockyard.contracts import Context, DataSpec, Parts, TokenSpec
from blockyard.model.encoder import Encoder
from blockyard.model.encoder_decoder import EncoderDecoder
from blockyard.tokenizer._lookup import TokenEmbedder
from blockyard.weight_init import Init, initialise
from tests.support.every import every
from tests.support.helpers import LENGTH, blocks, choices, context, factory, node, tiny, token_ids, traits

GAIN = 0.3  # of a block that has a say, as deepnorm


def weights(family: str, name: str, gain: float | None) -> dict[str, Tensor]:
    """The initial weights of a choice in a block that has this say."""
    axes = 1 if family == "channel_mixer" else max(traits(name).axes, key=(0, 2, 1).index)
    mixer = initialise(factory(family, name)(replace(context(axes=axes), gain=gain)), 0)
    return dict(mixer.named_parameters())


def heard(small: dict[str, Tensor], plain: dict[str, Tensor]) -> Iterator[str]:
    """Weights that follow what the block says."""
    return (name for name in plain if not torch.equal(small[name], plain[name]))


MIXERS = [(family, name) for family in ("token_mixer", "channel_mixer") for name in choices(family)]


@pytest.mark.parametrize(("family", "name"), MIXERS)
def test_a_block_says_how_small_a_mixer_starts(family: str, name: str) -> None:
    small, plain = weights(family, name, GAIN), weights(family, name, None)
    if not plain:
        return
    followed = list(heard(small, plain))
    assert followed, f"no weight of {name} starts as its block says"
    for path in followed:  # as the block says, on outputs in place of 1 / sqrt(2 depth)
        pairs = zip(small[path].flatten(0, -2), plain[path].flatten(0, -2), strict=True)
        rates = {round(float((s.norm() / p.norm()).detach()), 4) for s, p in pairs if p.norm() > 0}
        assert rates <= {round(GAIN * math.sqrt(2 * 2), 4), GAIN, 1.0}, (path, rates)


def test_a_mixer_that_hears_nothing_is_caught() -> None:
    class Deaf(nn.Linear):
        def __init__(self, ctx: Context) -> None:
            super().__init__(ctx.dim, ctx.dim)
            self.std = 1 / math.sqrt(2 * ctx.depth * ctx.dim)

        def init_weights(self, init: Init) -> None:
            init.normal("weight", std=self.std)
            init.zeros("bias")

    weights = [dict(initialise(Deaf(replace(context(), gain=gain)), 0).named_parameters()) for gain in (GAIN, None)]
    assert not list(heard(*weights))


@pytest.mark.parametrize("name", ["linear_attention", "memory_attention", "attention"])
def test_values_carry_content_and_keys_do_not(name: str) -> None:
    small, plain = weights("token_mixer", name, GAIN), weights("token_mixer", name, None)
    q, k, v = small["proj_in.weight"].chunk(3)
    plain_q, plain_k, plain_v = plain["proj_in.weight"].chunk(3)
    assert_close((q, k, v), (plain_q, plain_k, plain_v * GAIN))
    if "keys" in plain:
        assert_close((small["keys"], small["values"]), (plain["keys"], plain["values"] * GAIN))


def test_gmlp_starts_as_an_mlp_of_each_token() -> None:
    """Liu et al., section 2: spatial weights near zero and biases of one, so that the gate starts as one."""
    gate = initialise(factory("token_mixer", "gmlp")(context(grid=(64,))), 0).gate
    assert gate.weight.std().item() == pytest.approx(1e-6, rel=0.05)
    assert_close(gate.bias.detach(), torch.ones(64))
    x = torch.randn(2, 64, 96, generator=torch.Generator().manual_seed(0))
    assert_close(gate(x), x[..., :48], rtol=1e-4, atol=1e-4)


def test_monets_product_starts_as_large_as_its_linear_part() -> None:
    assert_close(weights("token_mixer", "monet", None)["alpha"].detach(), torch.ones(1))


def test_fixed_decays_start_between_a_half_and_nearly_one() -> None:
    mixer = factory("token_mixer", "linear_recurrence", {"decay": "fixed"})(context(dim=256))
    decays = torch.sigmoid(initialise(mixer, 0).rate)
    assert 0.5 <= decays.min().item() < 0.53
    assert 0.97 < decays.max().item() <= 0.999
    assert decays.mean().item() == pytest.approx((0.5 + 0.999) / 2, abs=0.03)


@pytest.mark.parametrize("name", blocks())
def test_cross_attention_starts_as_the_mixers_beside_it(name: str) -> None:
    """DeepNet, figure 2: a decoder's beta is on the values and outputs of both attentions."""
    ctx = replace(context(dim=64, causal=True), peer=3, branches=3)
    channel = "none" if node("block", name)[0].single else "mlp"
    parts = [factory(f, n) for f, n in (("token_mixer", "attention"), ("channel_mixer", channel), ("norm", "layer"))]
    block = factory("block", name)(ctx, *parts)
    block.add_cross(ctx, parts[0], parts[2])
    initialise(block, 0)
    for mixer in (block.token_mixer, block.cross_mixer):
        q, k, v = (part.std().item() for part in mixer.proj_in.weight.chunk(3))
        written = mixer.proj_out.weight.std().item()
        beta = 24**-0.25 if name == "deepnorm" else None  # 2 blocks: (12 M)^(-1/4)
        assert (q, k, v) == pytest.approx((0.02, 0.02, 0.02 * (beta or 1)), rel=0.05)
        assert written == pytest.approx(0.02 * (beta or 6**-0.5), rel=0.05)


def test_a_decoder_beside_an_encoder_counts_its_third_branch() -> None:
    """Six branches of a decoder of two blocks add up to what four of an encoder do."""
    data = DataSpec("text", (6,), source=DataSpec("text", (5,)))
    tokens = TokenSpec((6,), vocabulary=9, start=7, end=8)
    plan = EncoderDecoder(dim=64, depth=2, heads=4)
    ctx = plan.context(data, tokens, 9)
    names = {"position": "none", "token_mixer": "attention", "channel_mixer": "mlp", "norm": "layer", "head": "token"}
    parts = {family: factory(family, name) for family, name in names.items()}
    parts["head"] = partial(node("head", "token")[0], tied=False)
    model = initialise(plan.build(ctx, Parts(TokenEmbedder, block=factory("block", "pre_norm"), **parts)), 0)
    for block, branches in ((model.blocks[1], 3), (model.encoder.blocks[1], 2)):
        mixers = [m for m in (block.token_mixer, block.cross_mixer, block.channel_mixer) if m is not None]
        assert len(mixers) == branches
        for mixer in mixers:
            spread = mixer.proj_out.weight.std().item()
            assert spread == pytest.approx(ctx.init_std / math.sqrt(branches * ctx.depth), rel=0.03)


def test_uniform_weights_have_the_same_sizes() -> None:
    """A uniform distribution of the same standard deviation lies within sqrt(3) of it; zeros stay zeros."""
    normal, uniform = (
        dict(initialise(tiny(sizes={"init_shape": shape}), 0).named_parameters()) for shape in ("normal", "uniform")
    )
    drawn = {name for name, p in normal.items() if not torch.equal(p, uniform[name])}
    assert {name for name, p in normal.items() if p.ndim == 2} <= drawn
    for name in drawn:
        if normal[name].numel() >= 512:
            std = float(normal[name].detach().std())
            assert float(uniform[name].detach().std()) == pytest.approx(std, rel=0.1), name
            assert float(uniform[name].detach().abs().max()) == pytest.approx(3**0.5 * std, rel=0.1), name
            assert float(normal[name].detach().abs().max()) > 2.2 * std, name
    for name in set(normal) - drawn:
        assert normal[name].unique().numel() == 1, name  # zeros and ones


ZERO = {"zero_branches": True, "depth": 2}


@pytest.mark.parametrize(
    ("family", "name"), [each for each in MIXERS if each[1] not in ("cycle", "graph_conv", "none")]
)
def test_blocks_whose_branches_start_at_zero_are_the_identity(family: str, name: str) -> None:
    """Unless a mixer has no weights."""
    axes = 1 if family == "channel_mixer" or 1 in traits(name).axes else max(traits(name).axes)
    others = {"channel_mixer": "none"} if family == "token_mixer" else {"token_mixer": "none"}
    model = initialise(tiny(axes=axes, sizes=ZERO, **{family: name, **others}), 0).double()
    steps = model.steps(token_ids(2, LENGTH))
    weights = list(getattr(model.blocks[0], family).parameters())
    assert torch.equal(steps["block.1"], steps["stream"]) == bool(weights)


def test_every_weight_is_trained_from_zero() -> None:
    model = initialise(tiny(sizes=ZERO, options={"head": {"zero": True}}), 0).double()
    ids = token_ids(4, LENGTH)
    assert not model(ids).any()
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(1, 1).flatten()).backward()
        optimizer.step()
    assert [name for name, p in model.named_parameters() if torch.equal(p, first[name])] == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (partial(tiny, block=name, sizes=ZERO), "use block=pre_norm")
            for name in ("branch_norm", "sandwich", "sphere", "rezero", "no_residual")
        ),
        (partial(tiny, options={"head": {"zero": True, "tied": True}}), "use one of both"),
        (partial(Encoder, zero_branches=True, unit_weights=True), "no weight is zero"),
    ],
)
def test_zeros_that_cannot_be_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_mixers_side_by_side_learn_from_branches_of_zero() -> None:
    """Gains of zero behind members that start at zero too would never move."""
    model = tiny(token_mixer="beside", causal=True, sizes={"zero_branches": True})
    model(token_ids(2, 6)).square().sum().backward()
    gains = [p.grad for name, p in model.named_parameters() if name.endswith("token_mixer.gains")]
    assert len(gains) == 2
    assert every(bool(each.abs().max() > 0) for each in gains if each is not None)
    assert every(each is not None for each in gains)
