"""From a frozen config to a job that is ready for its first step: data, then model, then callbacks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from blockyard.atomic_files import write_json
from blockyard.config import build
from blockyard.config.lightning import refusal
from blockyard.contracts import Batch, DataSpec, Splits
from blockyard.engine import cost_card
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.callbacks.checkpoint import Checkpoint
from blockyard.engine.callbacks.kernels import KernelRecord
from blockyard.engine.callbacks.loop import Intervals, LoopCallback
from blockyard.engine.evaluator import Evaluator
from blockyard.engine.job import Job
from blockyard.engine.loader import BatchDataset, Layout, training_loader
from blockyard.engine.module import Learner, Settings
from blockyard.engine.summary import sizes
from blockyard.engine.system.interrupts import Interrupts
from blockyard.engine.threads import thread_count
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.runs.checkpoint import newest_good, verify
from blockyard.runs.folder import TOKENIZER, RunFolder
from blockyard.runs.lock import holder
from blockyard.runs.rank import local_rank_of, rank_of

log = logging.getLogger("blockyard")

_PATIENCE = 600.0  # seconds other processes wait for the main one to prepare the run

Log = Callable[[int, dict[str, float]], None]  # of the metrics of a step


@dataclass(frozen=True)
class _Run:
    """What is to be run: a folder, its components and its trainer options."""

    folder: RunFolder
    components: build.Components
    options: TrainerPlan


@dataclass(frozen=True)
class _Run:
    """What is to be run."""

    folder: RunFolder
    components: build.Components
    options: TrainerPlan


@dataclass(frozen=True)
class _Data:
    """The splits, and this process's share of them."""

    splits: Splits
    layout: Layout
    dataset: BatchDataset
    rank: int
    device: torch.device


@dataclass(frozen=True)
class _Model:
    """A model, and the precision that was decided for it; the number of threads is set."""

    model: nn.Module
    precision: dict[str, Any]
    threads: dict[str, Any]


def prepare(
    folder: RunFolder,
    log_metrics: Log,
    interrupts: Interrupts,
    *,
    resume: bool,
    callbacks: Mapping[str, RunCallback] | None = None,
) -> Job:
    """Do everything up to the first step. Raises UserError for a config that cannot work here.

    log_metrics: writes the metrics of a step; is not called in processes other than the main one
    callbacks: besides those of the config
    """
    components = build.Components(folder.config)
    run = _Run(folder, components, components.node("trainer"))
    ours, beside = split_callbacks(components.node("callbacks"))
    data = _load_data(run)
    model = _build_model(run, data)
    path, step = _find_checkpoint(folder, data.rank, resume)
    if data.rank == 0:
        _record(run, data, model, path)
    state = _run_state(run, data, model)
    evaluator = Evaluator(
        objective=components.objective,
        batch_size=components.data.eval_batch_size,
        device=data.device,
        precision=model.precision["precision"],
        layout=data.layout,
        interrupts=interrupts,
    )
    kernels = _kernels(run, data, model)
    loop = LoopCallback(
        state,
        _intervals(run, data.layout),
        {"_kernels": kernels, **ours, **(callbacks or {})},
        interrupts,
        beside=beside,
        log_metrics=log_metrics if data.rank == 0 else ignore_metrics,
        evaluate=partial(evaluator, state.learner.model, data.splits.validation, run.options.limit_val, shared=True),
    )
    return Job(
        folder=folder,
        components=components,
        options=run.options,
        splits=data.splits,
        layout=data.layout,
        loader=_loader(run, data, start=step, stop=state.total),
        loop=loop,
        evaluator=evaluator,
        kernels=kernels,
        device=data.device,
        precision=model.precision,
        checkpoint=path,
        start_step=step,
        interrupts=interrupts,
    )


def ignore_metrics(step: int, values: dict[str, float]) -> None:
    """The metrics of a process that does not write."""


def split_callbacks(named: Mapping[str, Any]) -> tuple[dict[str, RunCallback], tuple[pl.Callback, ...]]:
    """The run's callbacks by name, one that saves among them, and Lightning's. Raises UserError for other objects."""
    ours: dict[str, RunCallback] = {}
    beside = []
    for name, callback in named.items():
        if isinstance(callback, RunCallback):
            ours[name] = callback
        elif isinstance(callback, pl.Callback):
            reason = refusal(type(callback))
            if reason:
                raise UserError(f"callbacks.{name}: {reason}")
            beside.append(callback)
        else:
            raise UserError(
                f"callbacks.{name}: {type(callback).__name__} is neither a "
                "blockyard.engine.callbacks.base.RunCallback nor a pytorch_lightning.Callback"
            )
    if not any(isinstance(callback, Checkpoint) for callback in ours.values()):
        ours[""] = Checkpoint()
    return ours, tuple(beside)


# -- data and layout -------------------------------------------------------------------------------


def _load_data(run: _Run) -> _Data:
    folder, components, options = run.folder, run.components, run.options
    rank, device_type = rank_of(options.devices), options.device_type()
    if rank:
        _wait_for_main(folder)
    if local_rank_of() == 0:
        components.data.prepare()  # once on a machine
    splits = components.data.load(components.tokenizer)
    layout = Layout(
        seed=folder.seed,
        samples=len(splits.train),
        batch_size=components.data.batch_size,
        micro_batches=options.accumulate,
        rank=rank,
        world=options.world,
        limit=options.limit_train,
        overfit=options.overfit,
    )
    dataset = BatchDataset(splits.train, layout, components.objective, weighted=_targets_vary(components.data.spec))
    device = torch.device("cpu") if device_type == "cpu" else torch.device("cuda", local_rank_of())
    return _Data(splits, layout, dataset, rank, device)


def _targets_vary(spec: DataSpec) -> bool:
    """Whether samples may have different numbers of targets."""
    return spec.variable or spec.packed or spec.target == "symbols"


def _wait_for_main(folder: RunFolder) -> None:
    until = time.monotonic() + _PATIENCE
    while (folder.facts().get("start") or {"by": ""})["by"] != holder(folder.path):
        if time.monotonic() > until:
            raise UserError(f"the main process did not prepare {folder.path} within {_PATIENCE:.0f} s")
        time.sleep(0.1)


# -- model and precision ---------------------------------------------------------------------------


def _build_model(run: _Run, data: _Data) -> _Model:
    model = run.components.model(run.folder.seed)
    threads = _threads(run, data, model)
    torch.set_num_threads(threads["threads"])
    return _Model(model, _precision(run.folder, run.options, data.device), threads)


def _precision(folder: RunFolder, options: TrainerPlan, device: torch.device) -> dict[str, Any]:
    """The precision of a run, and why. A run never changes it: what run.json has counts."""
    recorded = folder.facts().get("precision")
    if isinstance(recorded, dict) and recorded.get("asked") == options.precision:
        return recorded
    if options.precision != "auto":
        return {"asked": options.precision, "precision": str(options.precision)}
    if device.type == "cuda":
        return {"asked": "auto", "precision": "bf16-mixed", "why": "auto is bf16-mixed on a GPU"}
    return {"asked": "auto", "precision": "32", "why": "auto is 32 on a CPU"}


def _threads(run: _Run, data: _Data, model: nn.Module) -> dict[str, Any]:
    """CPU threads of a run, and why. A run keeps them, because the order of additions depends on them."""
    options, components = run.options, run.components
    recorded = run.folder.facts().get("threads")
    if isinstance(recorded, dict) and recorded.get("asked") == options.threads:
        return recorded
    if options.threads != "auto":
        return {"asked": options.threads, "threads": options.threads}
    if data.device.type == "cuda":
        return {"asked": "auto", "threads": torch.get_num_threads(), "why": "auto leaves torch's number with a GPU"}
    spec, layout = components.data.spec, data.layout
    sample = cost_card.two_samples(data.splits.train, layout.batch_size if spec.variable else 1)
    flops = cost_card.flops_per_sample(model, components.objective, sample)["training"]
    return {"asked": "auto", **thread_count(flops * layout.batch_size // layout.shards, processes=options.devices)}


# -- callbacks and job -----------------------------------------------------------------------------


def _find_checkpoint(folder: RunFolder, rank: int, resume: bool) -> tuple[Path | None, int]:
    """The checkpoint to resume from and its step; None and 0 for a new run."""
    if rank:
        name = folder.facts()["start"]["checkpoint"]
        return (folder.checkpoints / name, verify(folder.checkpoints / name).step) if name else (None, 0)
    if not resume:
        return None, 0
    newest = newest_good(folder.checkpoints, identity=folder.identity, seed=folder.seed)
    if newest.refused:
        log.warning("%s", newest)
    if newest.path is None and newest.refused:
        raise UserError(f"no checkpoint of {folder.path} can be used: {newest}; force=true starts over")
    return newest.path, newest.step or 0


def _record(run: _Run, data: _Data, model: _Model, checkpoint: Path | None) -> None:
    """Write what other processes and later readers need, before the first step."""
    folder, components = run.folder, run.components
    fingerprint = components.data.fingerprint()
    recorded = folder.facts().get("data")
    if checkpoint is not None and isinstance(recorded, dict) and recorded.get("fingerprint") not in (None, fingerprint):
        raise UserError(
            f"the data of {folder.path} changed since the run began (fingerprint {recorded['fingerprint']}, now "
            f"{fingerprint}); restore the old data, or force=true starts over"
        )
    state = components.tokenizer.state()
    if state:
        write_json(folder.path / TOKENIZER, state)
    # Last: the other processes wait until the holder of the lock has written this.
    start = {"by": holder(folder.path), "checkpoint": checkpoint and checkpoint.name}
    facts = {"threads": model.threads, "precision": model.precision, "start": start}
    folder.add_facts(facts | {"data": {"fingerprint": fingerprint, **sizes(data.splits)}})


def _run_state(run: _Run, data: _Data, model: _Model) -> RunState:
    """The learner, and the run as callbacks see it."""
    folder, components, options = run.folder, run.components, run.options
    total = _total_steps(options, data.layout.steps_per_epoch, warn=data.rank == 0)
    settings = Settings(
        total=total,
        clip=options.gradient_clip,
        half=model.precision["precision"] == "16-mixed",
        sharded=options.sharded,
        compile=options.compile,
    )
    return RunState(
        learner=Learner(model.model, components.objective, components.optimizer, components.schedule, settings),
        name=str(folder.config.get("name") or folder.name),
        checkpoints=folder.checkpoints,
        total=total,
        steps_per_epoch=data.layout.steps_per_epoch,
        batch_size=data.layout.batch_size,
        tokens=components.tokens().max_len,
        modality=components.data.spec.modality,
        monitor=components.objective.best(),
        main=data.rank == 0,
        validation=data.splits.validation,
    )


def _intervals(run: _Run, layout: Layout) -> Intervals:
    return Intervals(
        seed=run.folder.seed,
        micro_batches=run.options.accumulate,
        log_every=run.options.log_every,
        evaluate_every=run.options.eval_every or layout.steps_per_epoch,
    )


def _kernels(run: _Run, data: _Data, model: _Model) -> KernelRecord:
    return KernelRecord(
        run.components.objective,
        data.splits.train,
        model.precision["precision"],
        require_flash=run.options.require_flash,
    )


def _loader(run: _Run, data: _Data, *, start: int, stop: int) -> DataLoader[Batch]:
    """Batches from step `start` to step `stop`."""
    micro_batches = run.options.accumulate
    return training_loader(
        data.dataset,
        start=start * micro_batches,
        stop=stop * micro_batches,
        workers=run.options.num_workers,
        pin=data.device.type == "cuda",
    )


def _total_steps(options: TrainerPlan, steps_per_epoch: int, *, warn: bool) -> int:
    total = options.total_steps(steps_per_epoch)
    if warn and options.max_steps is not None and total < options.max_steps:
        log.warning(
            "trainer.max_epochs=%s ends this run after %s steps, before trainer.max_steps=%s; "
            "trainer.max_epochs=null takes all of them",
            options.max_epochs,
            total,
            options.max_steps,
        )
    return total
