"""The first part of the setup of a run: its data, and this process's share of it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging.handlers import BufferingHandler

import torch
from torch import Tensor

from blockyard.config import build
from blockyard.contracts import DataSpec, HasLengths, KeyedOrder, Mixed, Split, Splits, Streamed
from blockyard.data.splits.split import classes_of
from blockyard.engine.loader import Layout
from blockyard.engine.stream_loader import check_stream
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.evaluate.writable import refusal
from blockyard.runs.folder import RunFolder
from blockyard.runs.lock import holder
from blockyard.runs.rank import local_rank_of, rank_of

log = logging.getLogger("blockyard")

_PATIENCE = 600.0  # seconds other processes wait for the main one to prepare the run


@dataclass(frozen=True)
class RunSetup:
    """The parts of a run before its data is read: a folder, its components and its trainer options."""

    folder: RunFolder
    components: build.Components
    options: TrainerPlan


@dataclass(frozen=True)
class DataSetup:
    """The splits, and this process's share of them. warnings: as logged about the data when it was read"""

    splits: Splits
    layout: Layout
    rank: int
    device: torch.device
    warnings: tuple[str, ...]


def load_data(run: RunSetup) -> DataSetup:
    """Read the splits and lay them out over steps and processes. Ranks other than 0 wait for the main process."""
    folder, components, options = run.folder, run.components, run.options
    rank, device_type = rank_of(options.devices), options.device_type()
    if rank:
        _wait_for_main(folder)
    if local_rank_of() == 0:
        components.data.prepare()  # once on a machine
    with _warnings() as records:
        splits = components.load()
    if options.write and (reason := refusal(splits.test, components.tokenizer)):
        raise UserError(f"trainer.write=true: {reason}; leave it out")
    layout = lay_out(splits, components.data.batch_size, options, seed=folder.seed, rank=rank)
    device = torch.device("cpu") if device_type == "cpu" else torch.device("cuda", local_rank_of())
    warnings = tuple(dict.fromkeys(record.getMessage() for record in records))
    return DataSetup(splits, layout, rank, device, warnings)


def over_steps(data: DataSetup, run: RunSetup, total: int) -> DataSetup:
    """Return the data with the parts of its layout that depend on the number of steps of the run."""
    growth = run.options.growth(data.layout.batch_size, run.components.tokens().max_len, total)
    layout = replace(data.layout, growth=growth)
    train = data.splits.train
    if isinstance(train, Streamed):
        check_stream(train, layout)
    if isinstance(train, Mixed):
        layout = replace(layout, planned=train.plan(layout.seed_of_order, total, layout.samples_of))
    return replace(data, layout=layout)


@contextmanager
def _warnings() -> Iterator[list[logging.LogRecord]]:
    """Collect the warnings that are logged inside."""
    handler = BufferingHandler(capacity=sys.maxsize)
    handler.setLevel(logging.WARNING)
    log.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        log.removeHandler(handler)


def lay_out(splits: Splits, batch_size: int, options: TrainerPlan, *, seed: int, rank: int) -> Layout:
    """Return how steps and processes share the training split. Raises UserError if the options do not suit the data."""
    layout = Layout(
        seed=seed,
        samples=len(splits.train),
        batch_size=batch_size,
        micro_batches=options.accumulate,
        rank=rank,
        world=options.world,
        context=options.context,
        limit=options.limit_train,
        overfit=options.overfit,
        group=options.group,
        keyed=isinstance(splits.train, KeyedOrder) and splits.train.keyed,
        lengths=_lengths(splits.train) if options.group else None,
        classes=classes_of(splits.train) if options.sampling == "balanced" else None,
        order_seed=options.order_seed,
    )
    if isinstance(splits.train, Streamed):
        check_stream(splits.train, layout)
    return layout


def targets_vary(spec: DataSpec) -> bool:
    """Return whether samples may have different numbers of targets: real values and labels may be missing."""
    return spec.variable or spec.packed or spec.target in ("symbols", "values", "labels", "tags")


def _lengths(split: Split) -> Tensor:
    """Return the length of each training sample, (n,) int64. Raises UserError if the data does not say."""
    lengths = split.lengths if isinstance(split, HasLengths) else None
    if lengths is None:
        raise UserError(
            f"trainer.group sorts samples by length, and {type(split).__name__} has no lengths; use trainer.group=0"
        )
    return lengths


def _wait_for_main(folder: RunFolder) -> None:
    until = time.monotonic() + _PATIENCE
    while folder.facts().get("start", {"by": ""})["by"] != holder(folder.path):
        if time.monotonic() > until:
            raise UserError(f"the main process did not prepare {folder.path} within {_PATIENCE:.0f} s")
        time.sleep(0.1)
