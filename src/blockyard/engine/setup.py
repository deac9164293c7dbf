"""From a frozen config to a job that is ready for its first step: data, then model, then callbacks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from blockyard.atomic_files import read_json
from blockyard.config import build
from blockyard.config.lightning import refusal
from blockyard.contracts import Streamed
from blockyard.engine import cost_card
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.callbacks.callback_set import CallbackSet
from blockyard.engine.callbacks.checkpoint import Checkpoint
from blockyard.engine.callbacks.device_stats import DeviceStats
from blockyard.engine.callbacks.loop import Intervals, LoopCallback
from blockyard.engine.data_reader import remarks
from blockyard.engine.evaluator import Evaluator
from blockyard.engine.faults.causality_probe import check_foreign
from blockyard.engine.faults.data_workers import check_open_files
from blockyard.engine.faults.interrupts import Interrupts
from blockyard.engine.faults.small_maps import guard_small_maps
from blockyard.engine.job import Job
from blockyard.engine.kernel_record import KernelRecord
from blockyard.engine.loader import BatchDataset, Layout, TrainingLoader, training_loader
from blockyard.engine.module import Learner, LearnerSettings
from blockyard.engine.resume_point import ResumePoint, restore_files, resume_point
from blockyard.engine.setup_data import DataSetup, RunSetup, load_data, over_steps, targets_vary
from blockyard.engine.setup_model import BuiltModel, build_model, flops_on_device
from blockyard.engine.step_budget import StepBudget, step_budget
from blockyard.engine.stream_loader import StreamBatches, StreamLoader, StreamState, stream_remarks
from blockyard.engine.summary import sizes
from blockyard.engine.system.device_peak import PeakRecord, peak_record
from blockyard.errors import UserError, printable
from blockyard.evaluate.inside import inside
from blockyard.runs.folder import TOKENIZER_FILES, RunFolder
from blockyard.runs.lock import holder
from blockyard.runs.rank import rank_of
from blockyard.weights import teacher
from blockyard.weights.continuation import plant
from blockyard.weights.parts import NEVER

log = logging.getLogger("blockyard")

Log = Callable[[int, dict[str, float]], None]  # of the metrics of a step


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
    callbacks: besides the config's
    """
    components = build.Components(folder.config)
    run = RunSetup(folder, components, components.node("trainer"))
    run_callbacks, lightning_callbacks = split_callbacks(components.node("callbacks"))
    # The checkpoint of the finished run lies in the new folder now, and is resumed from like its own.
    resume = go_on(run) or resume
    prepare_tokenizers(run, resume=resume)
    data = load_data(run)
    model = build_model(run, data)
    budget = step_budget(run, data, model)
    data = over_steps(data, run, budget.total)
    peak = peak_record(data.device, model.precision["precision"], run.options.peak_flops)
    _guard_small_maps(data, model)
    take_weights(run, model, rank=data.rank, resume=resume)
    # A resumed run was looked at before its first step.
    if not resume:
        check_foreign(components, model.model, data.splits.train)
    if data.rank == 0:
        check_inside(run, model, data)
        if model.teacher is not None:
            for note in model.teacher.notes:
                log.warning("%s", note)
        for remark in remarks(components, data.splits, budget.total):
            log.warning("%s", remark)
        if budget.remark:
            log.warning("%s", budget.remark)
        if peak is not None and peak["flops"] is None:
            log.warning("device/mfu is left out: %s", peak["why"])
    flops = None
    if data.rank == 0 and any(isinstance(callback, DeviceStats) for callback in run_callbacks.values()):
        flops = _flops_per_sample(run, data, model, budget, peak)
    state = _run_state(run, data, model, budget, peak)
    state.flops_per_sample = flops
    evaluator = _evaluator(run, data, model, interrupts)
    kernels = _kernels(run, data, model)
    hidden: dict[str, RunCallback] = {"_kernels": kernels}
    if isinstance(data.splits.train, Streamed):
        hidden["_stream"] = StreamState()
    loop = LoopCallback(
        state,
        _intervals(run, data.layout),
        CallbackSet({**hidden, **run_callbacks, **(callbacks or {})}, lightning_callbacks),
        interrupts,
        log_metrics=log_metrics if data.rank == 0 else ignore_metrics,
        evaluate=partial(evaluator, state.learner.model, data.splits.validation, run.options.limit_val, shared=True),
    )
    point = resume_point(folder, data.rank, resume, loop)
    path = point.path if data.rank else record(run, data, model, budget, peak, point)
    loader = _loader(run, data, interrupts, start=point.step, stop=state.total)
    if isinstance(loader, StreamLoader):
        stream = hidden["_stream"]
        assert isinstance(stream, StreamState)
        stream.loader = loader
        if data.rank == 0:
            for remark in stream_remarks(loader.dataset, run.options.num_workers):
                log.warning("%s", remark)
    return Job(
        folder=folder,
        components=components,
        options=run.options,
        budget=budget,
        splits=data.splits,
        layout=data.layout,
        loader=loader,
        loop=loop,
        evaluator=evaluator,
        kernels=kernels,
        device=data.device,
        precision=model.precision,
        checkpoint=path,
        start_step=point.step,
        interrupts=interrupts,
    )


def record(
    run: RunSetup,
    data: DataSetup,
    model: BuiltModel,
    budget: StepBudget,
    peak: PeakRecord | None,
    point: ResumePoint,
) -> Path | None:
    """Write the facts that other processes and later readers need; return the checkpoint to load."""
    folder, components = run.folder, run.components
    fingerprint = components.data.fingerprint()
    recorded = folder.facts().get("data", {}).get("fingerprint")
    if point.path is not None and recorded not in (None, fingerprint):
        raise UserError(
            f"the data of {folder.path} changed since the run began (fingerprint {recorded}, now "
            f"{fingerprint}); restore the old data, or force=true starts over"
        )
    checkpoint = restore_files(folder, point)
    for name, tokenizer in components.tokenizers.items():
        if state := tokenizer.state():
            folder.write_json(TOKENIZER_FILES[name], state)
    # Last: the other processes wait until the holder of the lock has written this.
    start = {"by": holder(folder.path), "checkpoint": checkpoint and checkpoint.name}
    facts: dict[str, Any] = {"threads": model.threads, "precision": model.precision, "start": start}
    if model.teacher is not None:
        facts["teacher"] = model.teacher.plain()
    if budget.step_flops is not None:
        facts["budget"] = {"steps": budget.total, "step_flops": budget.step_flops}
    if peak is not None:
        facts["peak"] = peak
    limits = components.data.limits()
    for limit in limits:
        log.warning("%s", limit)
    sentences = {"limits": list(limits), "warnings": list(data.warnings)}
    notes = {key: texts for key, texts in sentences.items() if texts}
    folder.add_facts(facts | {"data": {"fingerprint": fingerprint, **sizes(data.splits), **notes}})
    return checkpoint


def split_callbacks(named: Mapping[str, Any]) -> tuple[dict[str, RunCallback], tuple[pl.Callback, ...]]:
    """Return the run's callbacks by name, one that saves among them, and Lightning's. Raises UserError for others."""
    run_callbacks: dict[str, RunCallback] = {}
    lightning_callbacks = []
    for name, callback in named.items():
        if isinstance(callback, RunCallback):
            run_callbacks[name] = callback
        elif isinstance(callback, pl.Callback):
            reason = refusal(type(callback))
            if reason:
                raise UserError(f"callbacks.{name}: {reason}")
            lightning_callbacks.append(callback)
        else:
            raise UserError(
                f"callbacks.{name}: {type(callback).__name__} is neither a "
                "blockyard.engine.callbacks.base.RunCallback nor a pytorch_lightning.Callback"
            )
    selecting = [name for name, callback in run_callbacks.items() if callback.selects]
    if len(selecting) > 1:
        names = " and ".join(f"callbacks.{name}" for name in selecting)
        raise UserError(f"{names} each select the best step by weights of their own; one of them may, use select=raw")
    # Without a callback that saves, a run could neither be resumed nor tested.
    if not any(isinstance(callback, Checkpoint) for callback in run_callbacks.values()):
        run_callbacks[""] = Checkpoint()
    return run_callbacks, tuple(lightning_callbacks)


def check_inside(run: RunSetup, model: BuiltModel, data: DataSetup) -> None:
    """Measure the numbers of `trainer.inspect` on two samples. Raises UserError if there is nothing to measure."""
    names = run.options.inspect
    if not names:
        return
    try:
        inside(model.model, data.splits.test, run.components.objective, names, batch_size=2, limit=1)
    except ValueError as error:
        raise UserError(f"trainer.inspect=[{','.join(names)}]: {error}; leave it out") from error


def _guard_small_maps(data: DataSetup, model: BuiltModel) -> None:
    """Guard the maps of model and teacher that a CPU computes wrongly in half precision."""
    if data.device.type != "cpu" or "16" not in model.precision["precision"]:
        return
    guard_small_maps(model.model)
    if model.teacher is not None:
        guard_small_maps(model.teacher.model)


def ignore_metrics(step: int, values: dict[str, float]) -> None:
    """The metrics of a process that does not write."""


def _run_state(
    run: RunSetup, data: DataSetup, model: BuiltModel, budget: StepBudget, peak: PeakRecord | None
) -> RunState:
    """Return the learner, and the run as callbacks see it."""
    folder, components, options = run.folder, run.components, run.options
    peak_flops = None
    if peak is not None and peak["flops"] is not None:
        peak_flops = peak["flops"] * data.layout.world
    total = budget.total
    thaw = NEVER if components.init is None else components.init.thaw(model.model, total)
    settings = LearnerSettings(
        total=total,
        clip=options.gradient_clip,
        half=model.precision["precision"] == "16-mixed",
        sharded=options.sharded,
        compile=options.compile,
        checkpoint=options.checkpoint_blocks,
        context=options.context,
        timeout=options.timeout,
        thaw=thaw,
    )
    return RunState(
        learner=Learner(
            model.model, components.objective, components.optimizer, components.schedule, settings, model.teacher
        ),
        name=str(folder.shown.get("name") or folder.name),
        checkpoints=folder.checkpoints,
        total=total,
        max_seconds=options.max_seconds,
        steps_per_epoch=data.layout.steps_per_epoch,
        batch_size=data.layout.batch_size,
        tokens=components.tokens().max_len,
        modality=components.data.spec.modality,
        monitor=components.objective.best(),
        main=data.rank == 0,
        validation=data.splits.validation,
        growth=data.layout.growth,
        planned=data.layout.planned,
        log_every=options.log_every,
        peak_flops=peak_flops,
    )


def _flops_per_sample(
    run: RunSetup, data: DataSetup, model: BuiltModel, budget: StepBudget, peak: PeakRecord | None
) -> int | None:
    """Return the FLOPs of training on one sample, where the peak is known that they are to be compared with."""
    if peak is None or peak["flops"] is None:
        return None
    if budget.step_flops is not None:
        return budget.step_flops // data.layout.batch_size
    return flops_on_device(run, data, model)


def _evaluator(run: RunSetup, data: DataSetup, model: BuiltModel, interrupts: Interrupts) -> Evaluator:
    return Evaluator(
        objective=run.components.objective,
        batch_size=run.components.data.eval_batch_size,
        device=data.device,
        precision=model.precision["precision"],
        layout=data.layout,
        interrupts=interrupts,
        slices=run.components.data.spec.slices,
    )


def _intervals(run: RunSetup, layout: Layout) -> Intervals:
    return Intervals(
        seed=run.folder.seed,
        micro_batches=run.options.accumulate,
        log_every=run.options.log_every,
        evaluate_every=run.options.eval_every or layout.steps_per_epoch,
    )


def _kernels(run: RunSetup, data: DataSetup, model: BuiltModel) -> KernelRecord:
    return KernelRecord(
        run.components.objective,
        data.splits.train,
        model.precision["precision"],
        require_flash=run.options.require_flash,
        ring=run.options.context,
    )


def _loader(run: RunSetup, data: DataSetup, interrupts: Interrupts, *, start: int, stop: int) -> TrainingLoader:
    """Return the batches from step `start` to step `stop`."""
    check_open_files(run.options.num_workers)
    train, objective = data.splits.train, run.components.objective
    weighted = targets_vary(run.components.data.spec)
    if isinstance(train, Streamed):
        dataset: BatchDataset = StreamBatches(train, data.layout, objective, weighted=weighted)
        loader_class: type[TrainingLoader] = StreamLoader
        numbers_per_step = 1
    else:
        dataset = BatchDataset(train, data.layout, objective, weighted=weighted)
        loader_class = TrainingLoader
        numbers_per_step = run.options.accumulate
    return training_loader(
        dataset,
        start=start * numbers_per_step,
        stop=stop * numbers_per_step,
        workers=run.options.num_workers,
        pin=data.device.type == "cuda",
        timeout=run.options.timeout,
        interrupts=interrupts,
        loader_class=loader_class,
    )


def go_on(run: RunSetup) -> bool:
    """Give a new run that goes on from a finished one its last state; return whether this was done.

    Raises UserError where that state is not there any more.
    """
    init = run.components.init
    if init is None or init.parent is None or rank_of(run.options.devices) or _has_checkpoint(run):
        return False
    plant(run.folder, init.parent, init.parent_sha256)
    return True


def prepare_tokenizers(run: RunSetup, *, resume: bool) -> None:
    """Let tokenizers know the token ids that the weights, or a teacher's, were trained with, before data is read.

    Raises UserError where the source is not there any more, or has changed.
    """
    init, taught = run.components.init, run.components.objective.distillation is not None
    if init is None and not taught:
        return
    rank = rank_of(run.options.devices)
    begun = bool(rank and run.folder.facts().get("start", {}).get("checkpoint"))
    if not begun and not (resume and _has_checkpoint(run)):
        if init is not None:
            init.prepare_tokenizers(run.components)
        if taught:
            teacher.prepare_tokenizers(run.components)
        return
    components, folder = run.components, run.folder.path  # the source may be gone
    for name, tokenizer in components.tokenizers.items():
        if (path := folder / TOKENIZER_FILES[name]).is_file():
            tokenizer.load_state(read_json(path))


def take_weights(run: RunSetup, model: BuiltModel, *, rank: int, resume: bool) -> None:
    """Put the weights of the source into the model of a new run, print the transfer, and record it in run.json.

    A resumed run has its checkpoint instead.

    Raises UserError if they do not fit, or are not the weights that the config names.
    """
    init, folder = run.components.init, run.folder
    if init is None:
        return
    # The main process has recorded for the others whether the run resumes.
    begun = bool(folder.facts()["start"]["checkpoint"]) if rank else resume and _has_checkpoint(run)
    if begun:
        return
    transfer = init.load(run.components, model.model)
    if rank:
        return
    parameters = cost_card.parameters(model.model)
    facts = {"parameters": parameters}
    if transfer is not None:
        facts |= {"from": init.name, "which": init.which, "sha256": init.sha256, **transfer.plain()}
        sys.stderr.write(printable(f"init: from {init.name}: {transfer}\n"))
    if parameters["trainable"] < parameters["total"]:
        sys.stderr.write(f"init: {parameters['trainable']:,} of {parameters['total']:,} parameters are trained\n")
    folder.add_facts({"init": facts})


def _has_checkpoint(run: RunSetup) -> bool:
    return any(run.folder.checkpoints.glob("*.ckpt"))
