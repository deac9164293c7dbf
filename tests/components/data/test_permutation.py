"""The keyed permutation: a bijection of any size, other with each key, and the same as a part of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockyard.data.splits import order as order_module
from blockyard.data.splits.order import keyed_order, permuted, step_indices, steps_per_epoch


def assert_bijection(size: int, key: int) -> None:
    images = permuted(torch.arange(size), size, key)
    torch.testing.assert_close(images.sort().values, torch.arange(size), rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [range(1, 130), (1023, 1024, 1025, 4095, 4096, 4097, 99_991, 100_000)])
def test_every_size_is_permuted(sizes: range | tuple[int, ...]) -> None:
    for size in sizes:
        assert_bijection(size, size * 31)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5000), st.integers(0, 2**63 - 1))
def test_any_size_with_any_key(size: int, key: int) -> None:
    assert_bijection(size, key)


def test_a_lossy_round_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: every round adds modulo the same side, which loses indices where the sides differ."""
    real = order_module._rounds

    def lossy(index: Any, sides: tuple[Any, Any], keys: Any) -> Any:
        return real(index, (sides[0], sides[0]), keys) % (sides[0] * sides[1])

    monkeypatch.setattr(order_module, "_rounds", lossy)
    with pytest.raises(AssertionError):
        assert_bijection(1023 * 1024, 3)


def test_an_index_needs_no_other() -> None:
    """Among many billion indices some are permuted without a table, alone as together with others."""
    size = 5 * 10**11 + 7
    some = torch.tensor([0, 1, 2, size // 2, size - 1])
    images = permuted(some, size, 9)
    assert len(set(images.tolist())) == 5
    assert int(images.min()) >= 0
    assert int(images.max()) < size
    for index, image in zip(some, images, strict=True):
        torch.testing.assert_close(permuted(index[None], size, 9)[0], image)


def test_orders_look_random() -> None:
    """Fixed points and neighbours that stay neighbours are as rare as in a random permutation; keys differ."""
    size = 20_000
    orders = torch.stack([permuted(torch.arange(size), size, key) for key in range(20)])
    fixed = (orders == torch.arange(size)).sum(1).double()  # one on average, standard deviation one
    assert fixed.mean() < 2.5
    assert (orders.diff(dim=1).abs() == 1).sum(1).double().mean() < 6  # two on average
    ranks = torch.corrcoef(orders.double())
    assert (ranks - torch.eye(20)).abs().max() < 5 / size**0.5
    halves = (orders[:, : size // 2] < size // 2).double().mean(1)
    assert (halves - 0.5).abs().max() < 5 * 0.5 / size**0.5


@pytest.mark.parametrize(("samples", "batch", "world"), [(1000, 8, 2), (30_000, 64, 4), (8192, 8192, 1), (5, 8, 2)])
def test_steps_cover_an_epoch_in_disjoint_ranks(samples: int, batch: int, world: int) -> None:
    steps = range(steps_per_epoch(samples, batch))
    sizes = {"num_samples": samples, "batch_size": batch, "keyed": True}
    whole = torch.cat([step_indices(3, 1, step, **sizes) for step in steps])
    ranks = [torch.cat([step_indices(3, 1, s, rank=r, world=world, **sizes) for s in steps]) for r in range(world)]
    torch.testing.assert_close(torch.stack(ranks, 1).flatten(), whole)
    if samples >= batch:
        assert len(set(whole.tolist())) == len(whole) == samples // batch * batch


def test_a_step_does_not_depend_on_the_steps_before() -> None:
    sizes = {"num_samples": 10**9, "batch_size": 48, "keyed": True}
    steps = [0, 1, 170, 171, 20_000_000]
    orders = [step_indices(7, 2, step, **sizes).clone() for step in steps]
    for step, order in reversed(list(zip(steps, orders, strict=True))):
        keyed_order.cache_clear()
        torch.testing.assert_close(step_indices(7, 2, step, **sizes), order, rtol=0, atol=0)
    assert order_module.BLOCK % 48, "a step of 48 samples reads two blocks somewhere"
    assert len(set(torch.cat(orders).tolist())) == 48 * len(steps)
