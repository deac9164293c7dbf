"""`model.order`: blocks that are visited more than once, and in another order."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.contracts import Inputs
from blockyard.model._block_stack import loop_of
from tests.components.model.tiny_models import build_tiny
from tests.components.properties.checks import cached_decoding, causality, packing, padding
from tests.support.helpers import LENGTH, cycle_model, stir, tiny, token_ids

ORDER = (0, 1, 2, 1, 2, 3)


def unrolled(model: nn.Module, order: tuple[int, ...], **picks: str) -> nn.Module:
    """A model of as many blocks as there are visits, each with the weights of the block that it stands for."""
    plain = tiny(sizes={"depth": len(order)}, **picks)
    weights = model.state_dict()
    for visit, index in enumerate(order):
        own = {name: value for name, value in weights.items() if name.startswith(f"blocks.{index}.")}
        plain.blocks[visit].load_state_dict({name.split(".", 2)[2]: value for name, value in own.items()})
    rest = {name: value for name, value in weights.items() if not name.startswith(("blocks.", "residual."))}
    plain.load_state_dict(rest, strict=False)
    return plain


@pytest.mark.parametrize("block", ["pre_norm", "post_norm", "parallel"])
def test_equals_the_unrolled_model(block: str) -> None:
    """In outputs; the gradient of a shared weight is the sum over its visits."""
    model = tiny(sizes={"depth": 4, "order": ORDER}, block=block)
    plain = unrolled(model, ORDER, block=block)
    inputs = token_ids(2, LENGTH)
    assert_close(model(inputs), plain(inputs))
    for either in (model, plain):
        either(inputs).square().sum().backward()
    for name, parameter in model.blocks[1].named_parameters():
        visits = [plain.blocks[visit].get_parameter(name).grad for visit, index in enumerate(ORDER) if index == 1]
        assert_close(parameter.grad, sum(visits))
    ours, unshared = (sum(p.numel() for p in either.blocks.parameters()) for either in (model, plain))
    assert ours * 6 == unshared * 4


@pytest.mark.parametrize("position", ["rope", "alibi"])
def test_traits_of_mixers_stay(position: str) -> None:
    """A cache has an entry for each visit."""
    sizes = {"depth": 4, "order": ORDER}
    for causal in (False, True):
        model = tiny(causal=causal, position=position, sizes=sizes)
        padding(model, LENGTH)
        packing(model, LENGTH)
    causality(model, LENGTH)
    cached_decoding(model, LENGTH)
    assert len(model.init_cache(2).layers) == 6


def test_mixers_that_differ_by_block() -> None:
    """Visits of a block with a recurrence have states of their own."""
    model = cycle_model("linear_recurrence", "attention", causal=True, sizes={"order": (0, 1, 0, 1, 2, 3)})
    cached_decoding(model, LENGTH)


def test_planted_cache_that_visits_share_is_caught() -> None:
    model = tiny(causal=True, sizes={"depth": 2, "order": (0, 1, 0, 1)})
    make = model.init_cache

    def shared(batch_size: int) -> object:
        cache = make(batch_size)
        cache.layers[2] = cache.layers[0]
        return cache

    model.init_cache = shared
    with pytest.raises((AssertionError, RuntimeError)):
        cached_decoding(model, LENGTH)


def test_record_has_every_visit() -> None:
    model = tiny(sizes={"depth": 4, "order": ORDER})
    record = model.steps(token_ids(2, LENGTH))
    assert [name for name in record if name.startswith("block.")] == [f"block.{visit}" for visit in range(6)]
    x = record["stream"]
    for visit, index in enumerate(ORDER):
        x = model.blocks[index](x, record["seq"])
        assert_close(record[f"block.{visit}"], x)


def test_initial_weights_count_visits() -> None:
    """What writes into the stream starts smaller by the square root of the branches that a token passes."""
    once, twice = (build_tiny("encoder", depth=2, order=order) for order in (None, (0, 1) * 8))
    ratio = twice.blocks[1].token_mixer.proj_out.std / once.blocks[1].token_mixer.proj_out.std
    assert ratio == pytest.approx(8**-0.5)
    assert torch.equal(once.blocks[0].token_mixer.proj_in.weight, twice.blocks[0].token_mixer.proj_in.weight)


@pytest.mark.parametrize("name", ["encoder", "decoder", "joint", "joint_encoder", "perceiver", "encoder_decoder"])
def test_every_model_with_blocks_has_it(name: str) -> None:
    """The outputs differ from those of one visit a block; both stacks of an encoder-decoder have an order."""
    orders = {"order": (0, 1, 0, 1)} | ({"encoder_order": (0, 1, 1)} if name == "encoder_decoder" else {})
    inputs = Inputs(token_ids(2, 6), source=None if name in ("encoder", "decoder", "perceiver") else token_ids(2, 7))
    plain, looped = (stir(build_tiny(name, **options)) for options in ({}, orders))
    assert {path for path, _ in plain.named_parameters()} == {path for path, _ in looped.named_parameters()}
    assert (plain(inputs) - looped(inputs)).abs().max() > 1e-3
    if name == "encoder_decoder":
        assert looped.encoder.order == (0, 1, 1)


@pytest.mark.parametrize(
    ("order", "message"), [((0, 1, 4), "block 4"), ((0, 0), "never visits block 1")], ids=["beyond", "left out"]
)
def test_refusals(order: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tiny("encoder", order=order)


@pytest.mark.parametrize(
    ("order", "loop"),
    [
        (ORDER, ((0,), (1, 2), 2, (3,))),
        ((0, 1, 0, 1, 0, 1), ((), (0, 1), 3, ())),
        ((0, 0, 0), ((), (0,), 3, ())),
        ((0, 1, 1), ((0,), (1,), 2, ())),
        ((0, 1, 2), None),
        ((0, 1, 0), None),
        ((0, 0, 1, 1), None),
        ((0, 1, 2, 1, 2, 0), None),
    ],
)
def test_loops(order: tuple[int, ...], loop: object) -> None:
    result = loop_of(order)
    assert (None if result is None else tuple(result)) == loop
    if result is not None:
        assert result.order(result.times) == order
