"""Numbered batches: from any start, in any number of processes and micro-batches."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain

import pytest
import torch
from torch.utils.data import get_worker_info

from blockyard.contracts import Batch
from blockyard.engine import loader
from blockyard.engine.faults.interrupts import Interrupted, Interrupts
from blockyard.engine.loader import BatchDataset, Layout, training_loader
from blockyard.errors import UserError
from tests.support.every import every


class Numbers:
    """A split whose sample number n is the image n."""

    def __len__(self) -> int:
        return 100

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        return Batch(order[:, None].clone(), order % 10)


class Unprepared:
    """An objective that takes batches as they are."""

    mixes = False

    def ready(self, batch: Batch, key: int | None = None) -> Batch:
        return batch


def numbers(layout: Layout, start: int, stop: int, workers: int = 0) -> list[list[int]]:
    dataset = BatchDataset(Numbers(), layout, Unprepared())
    batches = training_loader(dataset, start=start, stop=stop, workers=workers, pin=False, timeout=60)
    return [batch.inputs[:, 0].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_by_number_start_anywhere(workers: int) -> None:
    layout = Layout(seed=0, samples=100, batch_size=16)
    assert layout.steps_per_epoch == 6
    whole = numbers(layout, 0, 15)
    assert numbers(layout, 7, 15, workers) == whole[7:]
    epochs = [sorted(chain(*whole[at : at + 6])) for at in (0, 6)]
    assert every(len(set(epoch)) == 96 for epoch in epochs)
    assert whole[:6] != whole[6:12]


class Failing(Numbers):
    """Numbers whose second batch a worker does not give. fail: what it does instead"""

    def __init__(self, fail: Callable[[], None]) -> None:
        self.fail = fail
        self.batches = 0

    def batch(self, order: torch.Tensor, key: int | None) -> Batch:
        self.batches += 1
        if self.batches == 2 and get_worker_info() is not None:
            self.fail()
        return super().batch(order, key)


FAILURES = {
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "ended": lambda: os._exit(0),
    "slow": lambda: time.sleep(600),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_after_a_signal_no_worker_is_waited_for(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "GRACE", 0.1)
    layout = Layout(seed=0, samples=100, batch_size=16)
    dataset = BatchDataset(Failing(FAILURES[failure]), layout, Unprepared())
    alarm = signal.getsignal(signal.SIGALRM)
    with Interrupts() as interrupts:
        interrupts.waiting = True
        batches = training_loader(dataset, start=0, stop=6, workers=1, pin=False, timeout=60, interrupts=interrupts)
        os.kill(os.getpid(), signal.SIGTERM)
        read = [batch.inputs[:, 0].tolist() for batch in batches]
        assert read == numbers(layout, 0, 6)
        assert interrupts.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGALRM) == alarm
    batches.close()
    assert not [worker for worker in batches._workers if worker.is_alive()]


def test_reading_here_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "GRACE", 0.1)
    layout = Layout(seed=0, samples=100, batch_size=16)

    class Hanging(Numbers):
        def batch(self, order: torch.Tensor, key: int | None) -> Batch:
            time.sleep(600)
            raise AssertionError

    dataset = BatchDataset(Hanging(), layout, Unprepared())
    with Interrupts() as interrupts:
        interrupts.waiting = True
        batches = training_loader(dataset, start=0, stop=6, workers=1, pin=False, timeout=0.5, interrupts=interrupts)
        interrupts.request(signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"):
            next(iter(batches))


def test_processes_and_pieces_together_see_the_batch_of_one() -> None:
    whole = numbers(Layout(seed=3, samples=100, batch_size=16), 0, 9)
    shares: dict[int, list[int]] = {update: [] for update in range(9)}
    for rank in (0, 1):
        layout = Layout(seed=3, samples=100, batch_size=16, micro_batches=2, rank=rank, world=2)
        for number, share in enumerate(numbers(layout, 0, 18)):
            assert len(share) == 4
            shares[number // 2] += share
    assert [sorted(share) for share in shares.values()] == [sorted(batch) for batch in whole]


def test_groups_are_the_same_in_several_processes_and_from_any_batch_on() -> None:
    grouped = partial(Layout, seed=3, samples=100, batch_size=16, group=2, lengths=torch.arange(100) * 7 % 31)
    whole = numbers(grouped(), 0, 15)
    assert whole != numbers(Layout(seed=3, samples=100, batch_size=16), 0, 15)
    assert numbers(grouped(), 7, 15) == whole[7:]
    shares = [numbers(grouped(rank=rank, world=2), 0, 15) for rank in (0, 1)]
    assert [sorted(left + right) for left, right in zip(*shares, strict=True)] == [sorted(batch) for batch in whole]


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.batch_size=63 does not divide into 2 processes .* multiple of 4"):
        Layout(seed=0, samples=100, batch_size=63, micro_batches=2, world=2)


def test_overfit_and_limit_shorten_the_epoch() -> None:
    once = numbers(Layout(seed=0, samples=100, batch_size=16, overfit=2), 0, 6)
    assert once[:2] == once[2:4] == once[4:]
    assert Layout(seed=0, samples=100, batch_size=16, limit=4).steps_per_epoch == 4


def test_a_connection_that_breaks_before_its_worker_is_dead_is_told_as_a_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = BatchDataset(Numbers(), Layout(seed=0, samples=100, batch_size=2), Unprepared())
    loader = training_loader(dataset, start=0, stop=100_000, workers=1, pin=False, timeout=60)
    batches = iter(loader)
    next(batches)
    killer = threading.Timer(0.3, os.kill, (loader._workers[0].pid, signal.SIGKILL))

    def broken(*_: object, **__: object) -> Batch:
        killer.start()
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr(loader._iterator, "_try_get_data", broken)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
        next(batches)
    killer.join()
    loader.close()


def test_a_worker_that_was_killed_ends_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch forgets the workers once: a second time would print a traceback while the iterator is collected."""
    dataset = BatchDataset(Numbers(), Layout(seed=0, samples=100, batch_size=2), Unprepared())
    loader = training_loader(dataset, start=0, stop=100_000, workers=1, pin=False, timeout=60)
    batches = iter(loader)
    next(batches)

    def kill_and_read_on(iterator: Iterator[Batch]) -> None:
        os.kill(loader._workers[0].pid, signal.SIGKILL)
        for _ in iterator:
            pass

    # Either torch's handler of the signal or the empty queue reports it, the handler at any point after the kill.
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
        kill_and_read_on(batches)
    loader.close()
    # Not before: torch's handler may raise inside any finalizer while the worker dies.
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: printed.append(unraisable.exc_value))
    del batches
    gc.collect()
    assert printed == []
