"""From a frozen config to a job that is ready for its first step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from blockyard.atomic_files import write_json
from blockyard.config import build
from blockyard.contracts import Batch, DataSpec, Splits
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.callbacks.checkpoint import Checkpoint
from blockyard.engine.callbacks.loop import Intervals, LoopCallback
from blockyard.engine.job import Job, sizes
from blockyard.engine.loader import BatchDataset, Layout, training_loader
from blockyard.engine.module import Learner, Settings
from blockyard.engine.precision import faster_on_cpu
from blockyard.engine.system.interrupts import Interrupts
from blockyard.engine.threads import worth_having
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.runs.checkpoint import newest_good
from blockyard.runs.folder import TOKENIZER, RunFolder
from blockyard.runs.lock import holder
from blockyard.runs.rank import local_rank_of, rank_of

log = logging.getLogger("blockyard")

_PATIENCE = 600.0  # seconds other processes wait for the main one to load and time


def prepare(
    folder: RunFolder,
    tell: Callable[[int, dict[str, float]], None],
    interrupts: Interrupts,
    *,
    resume: bool,
    watchers: Mapping[str, RunCallback] | None = None,
) -> Job:
    """Everything up to the first step. Raises UserError for what the config asks in vain."""
    plan = build.Components(folder.config)
    options: TrainerPlan = plan.node("trainer")
    rank = rank_of(options.devices)
    device_type = options.device_type()
    if rank:
        _wait_for_main(folder)
    if local_rank_of() == 0:
        plan.data.prepare()  # once on a machine
    splits = plan.data.load(plan.tokenizer)
    device = torch.device("cpu") if device_type == "cpu" else torch.device("cuda", local_rank_of())
    layout = Layout(
        seed=folder.seed,
        samples=len(splits.train),
        batch_size=plan.data.batch_size,
        pieces=options.accumulate,
        rank=rank,
        world=options.world,
        limit=options.limit_train,
        overfit=options.overfit,
    )
    model = plan.model(folder.seed)
    batch = BatchDataset(splits.train, layout)[0]
    threads = _threads(folder, options, device_type, model, plan, batch)
    torch.set_num_threads(threads["threads"])
    precision = _precision(folder, options, device_type, rank, model, plan, batch)
    checkpoint = _checkpoint(folder, rank, resume)
    if rank == 0:
        _write_down(folder, plan, {"threads": threads, "precision": precision}, splits, checkpoint)
    live_name = str(folder.config.get("name") or folder.name)
    total = options.total_updates(layout.steps_per_epoch)
    if rank == 0 and options.max_steps is not None and total < options.max_steps:
        log.warning(
            "trainer.max_epochs=%s ends this run after %s updates, before trainer.max_steps=%s; "
            "trainer.max_epochs=null makes all of them",
            options.max_epochs,
            total,
            options.max_steps,
        )
    settings = Settings(
        total=total,
        clip=options.gradient_clip,
        half=precision["precision"] == "16-mixed",
        sharded=options.sharded,
        compile=options.compile,
    )
    learner = Learner(model, plan.objective, plan.optimizer, plan.schedule, settings)
    live = RunState(
        learner=learner,
        name=live_name,
        checkpoints=folder.checkpoints,
        total=total,
        steps_per_epoch=layout.steps_per_epoch,
        batch_size=layout.batch_size,
        tokens=plan.tokens().max_len,
        modality=plan.data.spec.modality,
        monitor=plan.objective.best(),
        main=rank == 0,
        validation=splits.validation,
    )
    beats = Intervals(
        seed=folder.seed,
        pieces=options.accumulate,
        log_every=options.log_every,
        evaluate_every=options.eval_every or layout.steps_per_epoch,
    )
    job: Job
    rhythm = LoopCallback(
        live,
        beats,
        _watchers(plan) | dict(watchers or {}),
        interrupts,
        begin=lambda: job.begin(),
        evaluate=lambda: job.measure(splits.validation, learner.model, options.limit_val, together=True),
        tell=tell if rank == 0 else unheard,
    )
    job = Job(folder, plan, options, splits, learner, rhythm, layout, device, precision, checkpoint, interrupts)
    learner.key = layout.draw
    learner.loader = lambda start: training_loader(
        splits.train,
        layout,
        start=start * options.accumulate,
        stop=total * options.accumulate,
        workers=options.num_workers,
        pin=device_type == "cuda",
        prepare=plan.objective.prepare if _uneven(plan.data.spec) else None,
    )
    return job


def _uneven(spec: DataSpec) -> bool:
    """Whether rows may ask for different numbers of things."""
    return spec.variable or spec.packed or spec.target == "symbols"


def unheard(_step: int, _values: dict[str, float]) -> None:
    """What a process says that does not write."""


def _watchers(plan: build.Components) -> dict[str, RunCallback]:
    """The callbacks of the config by name. The one that saves is always among them."""
    found = dict(plan.node("callbacks"))
    for name, watcher in found.items():
        if not isinstance(watcher, RunCallback):
            kind = type(watcher).__name__
            raise UserError(f"callbacks.{name}: {kind} is no blockyard.engine.callbacks.base.RunCallback")
    return found if any(isinstance(w, Checkpoint) for w in found.values()) else found | {"": Checkpoint()}


def _checkpoint(folder: RunFolder, rank: int, resume: bool) -> Path | None:
    if rank:
        name = folder.facts()["start"]["checkpoint"]
        return folder.checkpoints / name if name else None
    if not resume:
        return None
    newest = newest_good(folder.checkpoints, identity=folder.identity, seed=folder.seed)
    if newest.refused:
        log.warning("%s", newest)
    if newest.path is None and newest.refused:
        raise UserError(f"no checkpoint of {folder.path} can be used: {newest}; force=true starts anew")
    return newest.path


def _precision(
    folder: RunFolder,
    options: TrainerPlan,
    device_type: str,
    rank: int,
    model: nn.Module,
    plan: build.Components,
    batch: Batch,
) -> dict[str, Any]:
    """What was decided for this run before, or is now; a run never changes its precision."""
    known = folder.facts().get("precision")
    if isinstance(known, dict) and known.get("asked") == options.precision:
        return known
    asked: dict[str, Any] = {"asked": options.precision}
    if options.precision != "auto":
        return asked | {"precision": str(options.precision)}
    if device_type == "cuda":
        return asked | {"precision": "bf16-mixed", "why": "a GPU takes bf16-mixed"}
    assert rank == 0, "the main process decides"
    return asked | faster_on_cpu(model, plan.objective, batch) | {"why": "timed on this CPU"}


def _threads(
    folder: RunFolder, options: TrainerPlan, device_type: str, model: nn.Module, plan: build.Components, batch: Batch
) -> dict[str, Any]:
    """How many CPU threads; a run keeps them, for sums are ordered by them."""
    known = folder.facts().get("threads")
    if isinstance(known, dict) and known.get("asked") == options.threads:
        return known
    asked: dict[str, Any] = {"asked": options.threads}
    if options.threads != "auto":
        return asked | {"threads": options.threads}
    if device_type == "cuda" or options.world > 1:
        return asked | {"threads": torch.get_num_threads()}
    return asked | worth_having(model, plan.objective, batch)


def _write_down(
    folder: RunFolder, plan: build.Components, decided: dict[str, Any], splits: Splits, checkpoint: Path | None
) -> None:
    """What other processes and later readers need, before the first step."""
    fingerprint = plan.data.fingerprint()
    known = folder.facts().get("data")
    if checkpoint is not None and isinstance(known, dict) and known.get("fingerprint") not in (None, fingerprint):
        raise UserError(
            f"the data of {folder.path} changed since it began (fingerprint {known['fingerprint']}, now "
            f"{fingerprint}); bring the old data back, or force=true starts anew"
        )
    state = plan.tokenizer.state()
    if state:
        write_json(folder.path / TOKENIZER, state)
    # Last: the other processes wait for the word of whoever holds the lock now.
    start = {"by": holder(folder.path), "checkpoint": checkpoint and checkpoint.name}
    folder.add_facts(decided | {"data": {"fingerprint": fingerprint, **sizes(splits)}, "start": start})


def _wait_for_main(folder: RunFolder) -> None:
    until = time.monotonic() + _PATIENCE
    while (folder.facts().get("start") or {"by": ""})["by"] != holder(folder.path):
        if time.monotonic() > until:
            raise UserError(f"the main process did not prepare {folder.path} within {_PATIENCE:.0f} s")
        time.sleep(0.1)
