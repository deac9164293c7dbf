"""Blocks against their equations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from blockyard.contracts import Block, Memory
from blockyard.weight_init import initialise
from tests.components.reference.inputs import sequence
from tests.support.helpers import choices, context, factory, node, stir, tiny

D = 16


X = torch.randn(2, 6, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


MEMORY = Memory(torch.randn(2, 4, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), sequence(4))


Map = Callable[[Tensor], Tensor]


BLOCKS = [name for name in choices("block") if not node("block", name)[0].empty]


def pre(x: Tensor, norm: nn.Module, mixer: Map, finish: Any, drop: Map) -> Tensor:
    return x + drop(mixer(norm(x)))


def post(x: Tensor, norm: nn.Module, mixer: Map, finish: Any, drop: Map) -> Tensor:
    return norm(x + drop(mixer(x)))


def sandwich(x: Tensor, norm: nn.Module, mixer: Map, finish: Any, drop: Map) -> Tensor:
    return x + drop(finish(mixer(norm(x))))


def branch(x: Tensor, norm: nn.Module, mixer: Map, finish: Any, drop: Map) -> Tensor:
    return x + drop(finish(mixer(x)))


def deep(x: Tensor, norm: nn.Module, mixer: Map, finish: Any, drop: Map) -> Tensor:
    """A decoder of 2 blocks beside an encoder: alpha = 6^(1/4)."""
    return norm(1.5650845800732873 * x + drop(mixer(x)))


def scaled(x: Tensor, norm: nn.Module, mixer: Map, finish: Any, drop: Map) -> Tensor:
    return x + drop(mixer(norm(x)) * finish.weight)


def bare(x: Tensor, norm: nn.Module, mixer: Map, finish: Any, drop: Map) -> Tensor:
    return drop(mixer(norm(x)))


def sphere(x: Tensor, norm: nn.Module, mixer: Map, finish: Any, drop: Map) -> Tensor:
    """The rates are |p| 0.05 sqrt(D), and the stream is divided by its length before and after."""
    x = x / x.norm(dim=-1, keepdim=True)
    y = mixer(norm(x))
    rates = finish.rate.weight.abs() * 0.05 * D**0.5
    x = x + drop(rates * (y / y.norm(dim=-1, keepdim=True) - x))
    return x / x.norm(dim=-1, keepdim=True)


BRANCHES = {
    "pre_norm": pre,
    "post_norm": post,
    "sandwich": sandwich,
    "branch_norm": branch,
    "deepnorm": deep,
    "layer_scale": scaled,
    "rezero": scaled,
    "single": pre,
    "sphere": sphere,
    "no_residual": bare,
}


def formula(name: str, block: Block, x: Tensor, drop: Map) -> Tensor:
    """The output of a block, branch by branch."""
    cross = getattr(block, "cross_mixer", None)
    if name == "parallel":
        h = block.token_norm(x)
        added = block.token_mixer(h, sequence(6)) + block.channel_mixer(h)
        return x + drop(added + cross(h, sequence(6), None, MEMORY) if cross is not None else added)
    branch = BRANCHES[name]
    x = branch(x, block.token_norm, lambda h: block.token_mixer(h, sequence(6)), block.token_finish, drop)
    if cross is not None:
        x = branch(x, block.cross_norm, lambda h: cross(h, sequence(6), None, MEMORY), block.cross_finish, drop)
    if name == "single":
        return x
    return branch(x, block.channel_norm, block.channel_mixer, block.channel_finish, drop)


def block_of(name: str, **options: Any) -> Block:
    """A block with large weights, and a cross-attention branch where it supports one."""
    ctx = replace(context(causal=True), peer=3)
    channel = "none" if node("block", name)[0].single else "mlp"
    parts = (factory("token_mixer", "attention"), factory("channel_mixer", channel), factory("norm", "layer"))
    block = factory("block", name, options)(ctx, *parts)
    block.add_cross(ctx, parts[0], parts[2])
    return stir(initialise(block, 0)).double().eval()


@pytest.mark.parametrize("name", BLOCKS)
def test_equation(name: str) -> None:
    block = block_of(name)
    assert_close(block(X, sequence(6), None, MEMORY), formula(name, block, X, lambda h: h))
    other = Memory(MEMORY.x.flip(-1), sequence(4))
    assert not torch.allclose(block(X, sequence(6), None, other), block(X, sequence(6), None, MEMORY))


@pytest.mark.parametrize("name", BLOCKS)
def test_dropout(name: str) -> None:
    """On the output of each branch, with the random numbers of torch's dropout in order."""
    block = block_of(name, dropout=0.4).train()
    torch.manual_seed(3)
    ours = block(X, sequence(6), None, MEMORY)
    torch.manual_seed(3)
    assert_close(ours, formula(name, block, X, lambda h: F.dropout(h, 0.4)))
    assert not torch.allclose(ours, block.eval()(X, sequence(6), None, MEMORY))


SKIPPING = [name for name in BLOCKS if "drop_path" in node("block", name)[1]]


@pytest.mark.parametrize("name", SKIPPING)
def test_drop_path(name: str) -> None:
    """Each sample skips each branch independently, at the rate of its depth; kept branches are rescaled."""
    block, rate, size = block_of(name, drop_path=0.6).train(), 0.3, 3000
    block.drop.drop_path = rate  # as in the middle of three blocks
    x, memory = X[:1].expand(size, -1, -1), Memory(MEMORY.x[:1].expand(size, -1, -1), MEMORY.seq)
    torch.manual_seed(0)
    ours = block(x, sequence(6), None, memory)
    calls: list[Tensor] = []
    formula(name, block, X, lambda h: calls.append(h) or h)
    matches = torch.zeros(size, dtype=torch.long)
    for kept in itertools.product((0.0, 1.0), repeat=len(calls)):
        draws = iter(kept)
        expected = formula(name, block, X, lambda h, draws=draws: h * next(draws) / (1 - rate))[0]
        same = (ours - expected).abs().flatten(1).amax(1) < 1e-9
        matches += same
        chance = torch.tensor([1 - rate if k else rate for k in kept]).prod().item()
        assert abs(same.double().mean().item() - chance) < 4 * (chance * (1 - chance) / size) ** 0.5
    assert (matches == 1).all()


@pytest.mark.parametrize("name", SKIPPING)
def test_drop_path_grows_with_depth(name: str) -> None:
    model = tiny(block=name, sizes={"depth": 4}, options={"block": {"drop_path": 0.3}})
    assert [block.drop.drop_path for block in model.blocks] == pytest.approx([0.0, 0.1, 0.2, 0.3])


@pytest.mark.parametrize("name", [n for n in BLOCKS if not node("block", n)[0].single])
def test_an_empty_mixer_has_no_branch(name: str) -> None:
    """It has no norm, no scale and no random numbers; the other branch remains."""
    options = {"block": {"fused": False}} if name == "parallel" else {}
    model = tiny(block=name, channel_mixer="none", options=options)
    block = model.blocks[0]
    assert not [path for path, _ in block.named_parameters() if path.startswith("channel")]
    x, mixed = X, lambda h: block.token_mixer(h, sequence(6))
    if name == "parallel":
        expected = x + mixed(block.token_norm(x))
    elif name == "deepnorm":
        expected = block.token_norm(4**0.25 * x + mixed(x))
    else:
        expected = BRANCHES[name](x, block.token_norm, mixed, block.token_finish, lambda h: h)
    assert_close(block(x, sequence(6)), expected)


def test_blocks_refuse_unsupported_mixers() -> None:
    with pytest.raises(ValueError, match="use channel_mixer=none"):
        tiny(block="single", channel_mixer="mlp")
    for name in BLOCKS:
        options = {"block": {"fused": False}} if name == "parallel" else {}
        with pytest.raises(ValueError, match="token_mixer and channel_mixer are both empty"):
            tiny(block=name, channel_mixer="none", options=options, replace={"token_mixer": AddsNothing})


class AddsNothing(node("token_mixer", "pool")[0]):
    """A token mixer that adds nothing."""

    empty = True


def test_bert_normalises_before_the_first_block() -> None:
    first, second = tiny(block="post_norm", options={"block": {"first_norm": True}}).blocks
    assert_close(first(X, sequence(6)), formula("post_norm", first, first.first_norm(X), lambda h: h))
    assert not list(second.first_norm.parameters())


@pytest.mark.parametrize("layer", [0, 2])
def test_norms_scaled_by_depth(layer: int) -> None:
    """1 / sqrt(l) in block l, from 1, on what every norm gives."""
    ctx = replace(context(causal=True, depth=3), layer=layer)
    parts = (factory("token_mixer", "attention"), factory("channel_mixer", "mlp"), factory("norm", "layer"))
    block = factory("block", "pre_norm", {"depth_scaled": True})(ctx, *parts)
    block.add_cross(ctx, parts[0], parts[2])
    stir(initialise(block, 0)).double().eval()
    seq, x, size = sequence(6), X, (layer + 1) ** -0.5
    x = x + block.token_mixer(size * block.token_norm.norm(x), seq)
    x = x + block.cross_mixer(size * block.cross_norm.norm(x), seq, None, MEMORY)
    x = x + block.channel_mixer(size * block.channel_norm.norm(x))
    assert_close(block(X, seq, None, MEMORY), x)


class Louder(nn.Module):
    """Planted: scales the output of a branch by 1.5."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * x


@pytest.mark.parametrize("name", BLOCKS)
def test_planted_difference_is_caught(name: str) -> None:
    block = block_of(name)
    expected = formula(name, block, X, lambda h: h)
    block.drop = Louder()
    with pytest.raises(AssertionError):
        assert_close(block(X, sequence(6), None, MEMORY), expected)


def test_planted_scale_of_the_stream_is_caught() -> None:
    block = block_of("deepnorm")
    block.alpha = 1.5  # 1.565 is right
    with pytest.raises(AssertionError):
        assert_close(block(X, sequence(6), None, MEMORY), formula("deepnorm", block, X, lambda h: h))
