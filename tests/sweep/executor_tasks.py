"""Tasks as the runner submits them, and the outcomes of an executor."""

from __future__ import annotations

from pathlib import Path

from blockyard.atomic_files import read_json
from blockyard.sweep.cells import Task
from tests.sweep.sweep_runs import wait_for


def task_of(sweep_plan, index=0, **changes):
    """The task of a cell of a plan; changes: its fields, and `config` for keys of its config."""
    cell = sweep_plan.cells[index]
    variant = sweep_plan.variants[cell.variant]
    return Task(cell.run, sweep_plan.config(cell) | changes.pop("config", {}), variant.choices, ("test",), **changes)


def until_ended(executor, count):
    """The outcomes of `count` tasks by key, as they come."""
    endings = []
    wait_for(lambda: endings.extend(executor.poll(0.1)) or len(endings) >= count)
    return {outcome.key: outcome for outcome in endings}


def config(devices=1, accelerator="auto", nodes=1):
    """The part of a config that says on which devices a cell runs."""
    return {"trainer": {"devices": devices, "accelerator": accelerator, "num_nodes": nodes}}


def read_lock(path: Path):
    """What the lock of a run folder says of its holder."""
    return read_json(path.parent / f".{path.name}.lock")
