"""The order of the data is a pure function of (seed, epoch, step), complete, and sharded without overlap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.data.splits.order import (
    epoch_key,
    epoch_order,
    eval_indices,
    eval_steps,
    grouped_order,
    mix,
    step_indices,
    steps_per_epoch,
    take,
)

Step = Callable[..., Tensor]
SIZES = st.integers(1, 200)


def assert_epoch_covers_once(step: Step, samples: int, batch: int) -> None:
    seen = [step(3, 1, s, num_samples=samples, batch_size=batch) for s in range(steps_per_epoch(samples, batch))]
    indices = torch.cat(seen)
    if samples < batch:
        assert len(indices) == batch
        assert set(indices.tolist()) == set(range(samples))
    else:
        assert len(indices) == samples // batch * batch
        assert len(set(indices.tolist())) == len(indices)
        assert set(indices.tolist()) <= set(range(samples))


def assert_shards_make_the_whole(step: Step, samples: int, world: int) -> None:
    batch = 4 * world
    whole = step(0, 2, 0, num_samples=samples, batch_size=batch)
    shards = [step(0, 2, 0, num_samples=samples, batch_size=batch, rank=r, world=world) for r in range(world)]
    assert {len(shard) for shard in shards} == {4}
    torch.testing.assert_close(torch.stack(shards, 1).flatten(), whole)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 100), SIZES)
def test_an_epoch_is_a_permutation(seed: int, epoch: int, samples: int) -> None:
    order = epoch_order(seed, epoch, samples)
    torch.testing.assert_close(order.sort().values, torch.arange(samples))


@settings(deadline=None)
@given(SIZES, st.integers(1, 50))
def test_every_sample_once_an_epoch(samples: int, batch: int) -> None:
    assert_epoch_covers_once(step_indices, samples, batch)


@settings(deadline=None)
@given(st.integers(16, 200), st.sampled_from([1, 2, 3, 4]))
def test_shards_are_disjoint_and_complete(samples: int, world: int) -> None:
    assert_shards_make_the_whole(step_indices, samples, world)


def test_planted_bugs_in_the_order_are_caught() -> None:
    def overlapping(seed: int, epoch: int, step: int, *, batch_size: int, **rest: int) -> Tensor:
        return step_indices(seed, epoch, 0, batch_size=batch_size, **rest)

    def same_on_every_rank(seed: int, epoch: int, step: int, *, rank: int = 0, **rest: int) -> Tensor:
        return step_indices(seed, epoch, step, rank=0, **rest)

    with pytest.raises(AssertionError):
        assert_epoch_covers_once(overlapping, 100, 10)
    with pytest.raises(AssertionError):
        assert_shards_make_the_whole(same_on_every_rank, 100, 2)


def test_order_is_a_pure_function() -> None:
    def draw() -> Tensor:
        return step_indices(5, 7, 3, num_samples=1000, batch_size=64)

    first = draw().clone()
    torch.manual_seed(1)
    torch.rand(10)
    epoch_order.cache_clear()
    for other in ((5, 8), (6, 7), (5, 7)):
        epoch_order(*other, 1000)
    torch.testing.assert_close(draw(), first, rtol=0, atol=0)
    state = torch.get_rng_state()
    epoch_order.cache_clear()
    draw()
    torch.testing.assert_close(torch.get_rng_state(), state)


def test_seeds_and_epochs_give_other_orders() -> None:
    orders = [epoch_order(seed, epoch, 100).tolist() for seed in range(4) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 16
    assert len({epoch_key(seed, epoch) for seed in range(4) for epoch in range(4)}) == 16
    assert mix(1, 23) != mix(12, 3)


LENGTHS = torch.arange(100) % 7
CLASSES = torch.arange(100) % 3


KINDS: dict[str, dict[str, Any]] = {
    "table": {},
    "keyed": {"keyed": True},
    "grouped": {"lengths": LENGTHS, "group": 2},
    "balanced": {"classes": CLASSES},
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_epoch_has_the_order_of_another(kind: str) -> None:
    def order(seed: int, epoch: int) -> Tensor:
        steps = [step_indices(seed, epoch, step, num_samples=100, batch_size=10, **KINDS[kind]) for step in range(10)]
        return torch.cat(steps)

    orders = {tuple(order(seed, epoch).tolist()) for seed in range(3) for epoch in range(4)}
    assert len(orders) == 12


@settings(deadline=None)
@given(SIZES, st.integers(1, 8), st.sampled_from([1, 2, 3]))
def test_evaluation_sees_every_sample_once_in_equal_shards(samples: int, each: int, world: int) -> None:
    batch = each * world
    real: list[int] = []
    for step in range(eval_steps(samples, batch)):
        shards = [eval_indices(step, num_samples=samples, batch_size=batch, rank=r, world=world) for r in range(world)]
        assert len({len(shard) for shard in shards}) == 1
        assert len(shards[0]) >= 1
        real += [i for shard in shards for i in shard.tolist() if i >= 0]
    assert sorted(real) == list(range(samples))


def test_a_dummy_sample_is_sample_zero_and_its_target_stays() -> None:
    class Split:
        def __init__(self, target: bool) -> None:
            self.target = target

        def __len__(self) -> int:
            return 4

        def batch(self, order: Tensor, key: int | None) -> Batch:
            return Batch(order[:, None] + torch.arange(3), order * 10 if self.target else None)

    labelled = take(Split(True), torch.tensor([2, -1]), None)
    assert labelled.target is not None
    assert labelled.sample is not None
    assert labelled.sample.tolist() == [2, -1]
    assert labelled.target.tolist() == [20, 0]
    text = take(Split(False), torch.tensor([2, -1]), None)
    assert text.inputs.tolist() == [[2, 3, 4], [0, 1, 2]]
    assert take(Split(False), torch.tensor([2, 1]), None).target is None


@settings(deadline=None)
@given(SIZES, st.integers(1, 12), st.integers(1, 5))
def test_groups_hold_the_samples_of_the_epoch_in_batches_of_similar_lengths(
    samples: int, batch: int, group: int
) -> None:
    lengths = torch.randint(1, 9, (samples,), generator=torch.Generator().manual_seed(samples))
    rest = {"num_samples": samples, "batch_size": batch}
    steps = range(steps_per_epoch(samples, batch))
    plain = [step_indices(0, 3, step, **rest) for step in steps]
    grouped = [step_indices(0, 3, step, **rest, lengths=lengths, group=group) for step in steps]
    torch.testing.assert_close(torch.cat(grouped).sort().values, torch.cat(plain).sort().values)
    if samples < batch:
        return
    # Each group of the permutation is some of the batches, and no two of its batches overlap in length.
    for start in range(0, len(plain), group):
        pool = set(torch.cat(plain[start : start + group]).tolist())
        own = sorted(sorted(lengths[each].tolist()) for each in grouped if set(each.tolist()) <= pool)
        assert len(own) == len(plain[start : start + group])
        joined = list(chain.from_iterable(own))
        assert joined == sorted(joined)


def test_one_group_is_sorted_and_less_is_padding() -> None:
    lengths = torch.randint(1, 1000, (400,), generator=torch.Generator().manual_seed(0))

    def padded(group: int) -> float:
        rest = {"num_samples": 400, "batch_size": 8, "lengths": lengths if group else None, "group": group}
        batches = [lengths[step_indices(0, 0, step, **rest)] for step in range(50)]
        return sum(len(each) * int(each.max()) for each in batches) / int(lengths.sum())

    assert padded(0) > 1.6
    assert padded(4) < 1.3
    assert padded(50) < 1.03
    # Batches of an epoch are not in order of length, and other epochs and seeds have other batches.
    longest = lengths[grouped_order(0, 0, lengths, 8, 50)].view(50, 8).amax(1)
    assert longest.diff().gt(0).float().mean() < 0.7
    orders = {tuple(grouped_order(seed, epoch, lengths, 8, 4).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@settings(deadline=None)
@given(st.integers(16, 200), st.sampled_from([1, 2, 3, 4]))
def test_shards_of_groups_are_disjoint_and_complete(samples: int, world: int) -> None:
    lengths = torch.arange(samples) % 7

    def grouped(*where: int, **rest: int) -> Tensor:
        return step_indices(*where, **rest, lengths=lengths, group=3)

    assert_shards_make_the_whole(grouped, samples, world)
    assert_epoch_covers_once(grouped, samples, 4 * world)


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="a multiple of 3"):
        step_indices(0, 0, 0, num_samples=100, batch_size=10, rank=0, world=3)
    with pytest.raises(ValueError, match="an epoch of 10 steps"):
        step_indices(0, 0, 10, num_samples=100, batch_size=10)
