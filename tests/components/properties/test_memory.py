"""Cross-attention, prefix tokens, sequence lengths: traits of every token mixer in conf/."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from blockyard.contracts import Memory, Seq
from blockyard.model._prefix import Prefix
from blockyard.ops.cache import KVCache
from blockyard.ops.rotate import rotate
from tests.components.properties.checks import differs
from tests.support.helpers import choices, combinations, context, factory, stir, tiny, token_ids, traits
from tests.support.pairwise import each_once


def sequence(n: int, position: nn.Module | None = None) -> Seq:
    """The `Seq` of a plain sequence."""
    return Seq(torch.arange(n), torch.arange(n).double()[None, :, None], position=position)


def cross_mixers() -> list[str]:
    """Mixers that support cross-attention."""
    return [name for name in choices("token_mixer") if traits(name).cross]


GROUPED = [{"num_kv_heads": 2, "qk_norm": True}, {"num_kv_heads": 1}]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mixer", cross_mixers())
def test_memory(mixer: str, causal: bool) -> None:
    """The whole memory is read, except its padding, and its order does not matter."""
    for options in [{}, *GROUPED] if mixer == "attention" else [{}]:
        check_cross(stir(factory("token_mixer", mixer, options)(context(causal=causal))).double())


def check_cross(part: nn.Module) -> None:
    """The properties of a mixer that supports cross-attention."""
    # Enough sequences that a mixer which reads few tokens reads each of them in one.
    x, y = torch.randn(64, 4, 16).double(), torch.randn(64, 7, 16).double()
    out = part(x, sequence(4), memory=Memory(y, sequence(7)))
    assert out.shape == x.shape
    for t in range(7):
        changed = y.clone()
        changed[:, t] += torch.randn(16)
        moved = part(x, sequence(4), memory=Memory(changed, sequence(7)))
        assert (moved - out).abs().amax((0, 2)).min() > 1e-6, "some token does not see the memory"
    order = torch.randperm(7)
    assert_close(part(x, sequence(4), memory=Memory(y[:, order], sequence(7))), out)
    padded = sequence(7)
    padded.valid = torch.arange(7) < torch.tensor([[5], [0]])
    masked = part(x[:2], sequence(4), memory=Memory(y[:2], padded))
    assert_close(masked[:1], part(x[:1], sequence(4), memory=Memory(y[:1, :5], sequence(5))))
    assert_close(masked[1], torch.zeros_like(masked[1]))
    for t in range(4):
        alone = part(x[:, t : t + 1], sequence(1), memory=Memory(y, sequence(7)))
        assert_close(alone, out[:, t : t + 1])


@pytest.mark.parametrize("mixer", [m for m in choices("token_mixer") if traits(m).prefix])
@pytest.mark.sampled(3)
def test_prefix_tokens_are_mixed(mixer: str) -> None:
    """The class token sees every token, and every token sees it and the registers."""
    prefix = Prefix(class_token=True, registers=1)
    model = tiny(token_mixer=mixer, head="class_token", prefix=prefix)
    inputs = token_ids(64, 6)
    before = model(inputs)
    for t in range(6):
        changed = inputs.clone()
        changed[:, t] = (changed[:, t] + 1) % 11
        differs(model(changed), before)
    tokens = tiny(token_mixer=mixer, prefix=prefix)
    before = tokens(inputs)
    assert before.shape == (64, 6, 11)
    for learned in (tokens.prefix.class_token, tokens.prefix.registers):
        with torch.no_grad():
            learned += torch.randn(learned.shape)
        after = tokens(inputs)
        assert (after - before).abs().amax((0, 2)).min() > 1e-6
        before = after


@pytest.mark.parametrize(("mixer", "position", "axes"), each_once([case for case in combinations() if case[2] < 2]))
def test_lengths(mixer: str, position: str, axes: int) -> None:
    """Sequences of any length where declared, of one length otherwise: each mixer, and each position."""
    model = tiny(token_mixer=mixer, position=position, axes=axes)
    if traits(mixer).any_length:
        for n in (1, 3, 5, 9):
            assert model(token_ids(2, n)).shape == (2, n, 11)
    else:
        with pytest.raises(ValueError, match="built for 6 tokens and got 5"):
            model(token_ids(2, 5))


@pytest.mark.parametrize("axes", [1, 2])
def test_rotation_leaves_the_prefix_unchanged(axes: int) -> None:
    position = factory("position", "rope")(context(axes=axes))
    coords = torch.randint(1, 5, (1, 6, axes)).double()
    seq = Seq(torch.arange(6), coords, num_prefix=2, position=position)
    q, k = torch.randn(2, 4, 6, 4).double(), torch.randn(2, 2, 6, 4).double()
    rotated = rotate(q, k, seq, seq)
    for before, after in zip((q, k), rotated, strict=True):
        assert torch.equal(before[:, :, :2], after[:, :, :2])
        assert (before[:, :, 2:] - after[:, :, 2:]).abs().amax((0, 1, 3)).min() > 0
    bare = Seq(torch.arange(4), coords[:, 2:], position=position)
    assert_close(rotate(q[:, :, 2:], k[:, :, 2:], bare, bare)[0], rotated[0][:, :, 2:])


def test_a_memory_rotates_only_in_the_same_coordinates() -> None:
    position = factory("position", "rope")(context())
    q, k = torch.randn(1, 4, 3, 4).double(), torch.randn(1, 4, 5, 4).double()
    foreign = rotate(q, k, sequence(3, position), sequence(5))
    assert foreign[0] is q
    assert foreign[1] is k
    own = rotate(q, k, sequence(3, position), sequence(5, position))
    assert not torch.equal(own[0], q)
    assert_close(own[1][:, :, :3], rotate(q, k[:, :, :3], sequence(3, position), sequence(3, position))[1])


def test_the_cache_lets_go_of_earlier_steps() -> None:
    """Of twenty steps the facts of the last one alone are kept, and no mask of the prompt."""
    caches = [KVCache(1, 2, 4) for _ in range(2)]
    alive: list[weakref.ref[Seq]] = []
    masks: list[weakref.ref[torch.Tensor]] = []
    for n in range(20):
        new = Seq(torch.arange(n, n + 1), torch.full((1, 1, 1), float(n)))
        if not n:
            new.memo["mask"] = torch.zeros(3)
            masks.append(weakref.ref(new.memo["mask"]))
        alive.append(weakref.ref(new))
        for cache in caches:
            cache.append(*torch.zeros(2, 1, 2, 1, 4), new)
    del new
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= 1
    assert masks[0]() is None
    assert caches[0].seq is not None
    assert caches[0].seq.index.tolist() == list(range(20))


def test_the_cache_keeps_the_seq_of_past_keys() -> None:
    """Index, coordinates, validity and segments, over chunks that lack some of them."""
    cache, segments = KVCache(2, 1, 4), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    valid = torch.tensor([[True, True], [True, False]])
    start = 0
    for size in (2, 1, 2):
        here = slice(start, start + size)
        seq = Seq(
            torch.arange(start, start + size),
            torch.arange(start, start + size).double()[None, :, None].expand(2 if start else 1, -1, -1),
            valid=None if start else valid,
            segment=segments[:, here],
        )
        k = torch.full((2, 1, size, 4), float(start))
        keys, values, k_seq = cache.append(k, k + 0.5, seq)
        start += size
    assert torch.equal(keys[0, 0, :, 0], torch.tensor([0.0, 0.0, 2.0, 3.0, 3.0]))
    assert torch.equal(values, keys + 0.5)
    assert torch.equal(k_seq.index, torch.arange(5))
    assert torch.equal(k_seq.coords[1, :, 0], torch.arange(5).double())
    assert torch.equal(k_seq.segment, segments)
    assert torch.equal(k_seq.valid, torch.tensor([[True] * 5, [True, False, True, True, True]]))
    with pytest.raises(ValueError, match="segment is given for only one"):
        cache.append(k[:, :, :1], k[:, :, :1], sequence(1))
    with pytest.raises(ValueError, match="prefix tokens must be the first in a cache"):
        cache.append(k[:, :, :1], k[:, :, :1], Seq(torch.arange(1), torch.zeros(1, 1, 1), num_prefix=1))
