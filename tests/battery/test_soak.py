"""Many runs, and many steps, in one process: its memory, file descriptors and threads stay flat."""

from __future__ import annotations

import gc
import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.run import train
from blockyard.runs.start import create_run
from tests.battery.cases import battery, cases
from tests.support.fork import forked
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, Configured, configured, steps

pytestmark = battery("soak")

SMALL = (*ON_CPU, *ONE_LAYER, *ONE_BATCH, "data.batch_size=8", "data.eval_batch_size=8", "trainer.log_every=2")
TEXT = ("data=code", "data.context=16", "tokenizer=byte", "head=token", "objective=next_token", "model=decoder")
# Runs follow one another in this order: memory that one kind of them keeps would add up.
KINDS: list[tuple[str, ...]] = [
    (),
    TEXT,
    ("callbacks=default", "optimizer=muon"),
    ("trainer.accumulate=2", "norm=batch"),
]
MEBIBYTE = 2**20


class Usage(NamedTuple):
    """What a process holds: bytes of memory, file descriptors, threads, children."""

    memory: int
    descriptors: int
    threads: int
    children: int

    @classmethod
    def now(cls) -> Usage:
        """This process's, after what nobody refers to was freed."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        task = Path(f"/proc/self/task/{os.getpid()}/children")
        counts = [len(list(Path("/proc/self", name).iterdir())) for name in ("fd", "task")]
        return cls(pages * os.sysconf("SC_PAGESIZE"), *counts, len(task.read_text().split()))


class Plan(NamedTuple):
    """So many runs of so many steps in one process; the first ones may fill caches."""

    runs: int
    steps: int
    first: int
    megabytes: int  # of memory that may be added after the first ones

    def __str__(self) -> str:
        return f"{self.runs}x{self.steps}"


@pytest.mark.full
@pytest.mark.parametrize("plan", cases([Plan(12, 4, 8, 24), Plan(200, 10, 40, 32)], short=1))
def test_runs_in_one_process_keep_nothing(plan: Plan, tmp_path: Path) -> None:
    kinds = [configured(*SMALL, *kind, *steps(plan.steps, plan.steps), f"outputs={tmp_path}") for kind in KINDS]

    def work() -> int:
        usage = []
        for number in range(plan.runs):
            _train_and_remove(kinds[number % len(kinds)], seed=number)
            usage.append(Usage.now())
        (tmp_path / "usage.json").write_text(json.dumps(usage))
        return 0

    assert forked(work, limit=3600) == 0
    _assert_flat(_read(tmp_path)[plan.first :], plan.megabytes * MEBIBYTE)


@pytest.mark.battery
def test_two_thousand_steps_of_one_run_keep_nothing(tmp_path: Path) -> None:
    run = configured(*SMALL, *steps(2000, 200), "trainer.max_epochs=null", f"outputs={tmp_path}")

    def work() -> int:
        usage: list[Usage] = []

        class Watch(RunCallback):
            def on_evaluate(self, state: RunState, values: dict[str, float]) -> None:
                usage.append(Usage.now())

        with create_run(run[0], command=["test"], choices=run[1]) as folder:
            code = train(folder, callbacks={"watch": Watch()})
        (tmp_path / "usage.json").write_text(json.dumps(usage))
        return code

    assert forked(work, limit=3600) == 0
    _assert_flat(_read(tmp_path)[2:], 16 * MEBIBYTE)


@pytest.mark.parametrize("kept", ["memory", "descriptors"])
def test_a_process_that_keeps_something_is_caught(kept: str) -> None:
    flat = [Usage(100 * MEBIBYTE, 10, 2, 0)] * 3
    grown = [*flat, flat[0]._replace(**{kept: 2 * getattr(flat[0], kept)})]
    _assert_flat(flat, MEBIBYTE)
    with pytest.raises(AssertionError, match=kept):
        _assert_flat(grown, MEBIBYTE)


def _train_and_remove(run: Configured, seed: int) -> None:
    config, choices = run
    with create_run(config | {"seed": seed}, command=["test"], choices=choices) as folder:
        assert train(folder) == 0
    shutil.rmtree(folder.path.parent)


def _read(outputs: Path) -> list[Usage]:
    return [Usage(*entry) for entry in json.loads((outputs / "usage.json").read_text())]


def _assert_flat(usage: list[Usage], most_memory: int) -> None:
    """Descriptors, threads and children are the same at the end; memory has grown by less than so many bytes."""
    first, last = usage[0], usage[-1]
    assert last.memory - first.memory < most_memory, f"memory: {[each.memory // MEBIBYTE for each in usage]} MiB"
    for name in ("descriptors", "threads", "children"):
        assert getattr(last, name) <= getattr(first, name), f"{name}: {[getattr(each, name) for each in usage]}"
