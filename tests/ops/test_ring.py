"""Ring attention on two gloo processes: outputs, gradients and updates of one process."""

from __future__ import annotations

from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
import torch
from torch import Tensor

from blockyard.contracts import Batch, Seq
from blockyard.ops.ring import Ring, sharing
from tests.ops.ring_processes import CASES, PARTS, WORLD, trained, whole, work
from tests.support.every import every
from tests.support.fork import forked
from tests.support.helpers import tiny, token_ids
from tests.support.tolerances import FLOAT32_STEPS

Results = list[dict[str, list[Tensor]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each of the two processes computed."""
    folder = tmp_path_factory.mktemp("ring")
    with ThreadPool(WORLD) as pool:
        assert pool.map(forked, [partial(work, rank, folder) for rank in range(WORLD)]) == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


def assert_sums(results: Results, name: str, case: str) -> None:
    """What the processes computed adds up to the result of one."""
    together = [sum(parts, torch.zeros(())) for parts in zip(*(each[name] for each in results), strict=True)]
    torch.testing.assert_close(together, whole(case), rtol=1e-10, atol=1e-12)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_are_those_of_one_process(results: Results, case: str) -> None:
    assert_sums(results, case, case)


@pytest.mark.parametrize("planted", ["no rescale", "mask by row"])
def test_a_wrong_merge_or_mask_is_caught(results: Results, planted: str) -> None:
    with pytest.raises(AssertionError):
        assert_sums(results, planted, "causal")


@pytest.mark.parametrize("position", PARTS)
def test_updates_are_those_of_one_process(results: Results, position: str) -> None:
    alone = trained(position, None)
    for rank in range(WORLD):
        torch.testing.assert_close(results[rank][f"model {position}"], alone, **FLOAT32_STEPS)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("length", [6, 11, 64])
def test_every_token_is_in_one_process_and_causal_work_is_equal(length: int, world: int) -> None:
    parts = [Ring(rank, world, None).tokens(length, rank) for rank in range(world)]
    assert torch.cat(parts).sort().values.tolist() == list(range(length))
    assert every(part.diff().min() > 0 for part in parts)
    if length % (2 * world) == 0:
        assert len({int((part + 1).sum()) for part in parts}) == 1  # keys that the process's queries see


def test_weights_of_targets_add_up_to_the_mean() -> None:
    target = torch.arange(16).reshape(2, 8)
    target[0, :5] = Batch.ignore
    parts = [Ring(rank, 2, None).targets(target) for rank in range(2)]
    means = [share * own[Batch.counted(own)].double().mean() for own, share in parts]
    torch.testing.assert_close(
        torch.stack(means).mean(), target[Batch.counted(target)].double().mean(), **FLOAT32_STEPS
    )


def test_what_cannot_be_cut_is_refused() -> None:
    ring, x = Ring(0, 2, None), torch.zeros(1, 6, 3)
    seq = Seq(torch.arange(6), torch.zeros(1, 6, 1), segment=torch.zeros(1, 6, dtype=torch.int64))
    with pytest.raises(ValueError, match="only whole sequences of one length"):
        ring.cut(x, seq)
    with pytest.raises(ValueError, match="3 tokens cannot be cut among 2 processes; use at least 4"):
        ring.tokens(3, 0)


class Alone(Ring):
    """One of several processes without the others, whose keys and values are zeros here."""

    def passed_on(self, tensors: list[Tensor], sizes: list[torch.Size]) -> tuple[list[Tensor], list[Any]]:
        """Zeros, at once."""
        return [each.new_zeros(size) for each, size in zip(tensors, sizes, strict=True)], []


def kept_bytes(by: Ring | None) -> int:
    """What a forward pass over 400 tokens keeps for the backward pass, without weights."""
    model = tiny(causal=True, axes=1, position="none", token_mixer="attention").train()
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), sharing(by):
        model(inputs=token_ids(2, 400))
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in weights)


def test_memory_of_a_process_falls_with_their_number() -> None:
    whole = kept_bytes(None)
    assert kept_bytes(Alone(0, 2, None)) < 0.6 * whole
    assert kept_bytes(Alone(0, 4, None)) < 0.3 * whole
