"""The second part of the setup of a run: its model, with the precision and the CPU threads that it trains in."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import torch
from torch import nn

from blockyard.engine import cost_card
from blockyard.engine.setup_data import DataSetup, RunSetup
from blockyard.engine.trainer import TrainerPlan
from blockyard.runs.folder import RunFolder
from blockyard.weights.teacher import Teacher, load_teacher

log = logging.getLogger("blockyard")

# On 2 cores a second thread costs 19 to 23 % below 0.04 GFLOPs, and saves 11 % at 0.3 and 26 % at 0.6.
FLOPS_PER_THREAD = 0.3e9


class PrecisionRecord(TypedDict):
    """The precision of a run as run.json has it. asked: the option; why: where it is "auto"."""

    asked: str | int
    precision: str
    why: NotRequired[str]


class ThreadsRecord(TypedDict):
    """The CPU threads of a run as run.json has them. asked: the option; why: where it is "auto"."""

    asked: str | int
    threads: int
    why: NotRequired[str]


@dataclass(frozen=True)
class BuiltModel:
    """A model, and the precision that was decided for it; the number of threads is set. teacher: where it has one."""

    model: nn.Module
    precision: PrecisionRecord
    threads: ThreadsRecord
    teacher: Teacher | None = None


def build_model(run: RunSetup, data: DataSetup) -> BuiltModel:
    """Build the model on the CPU, decide precision and threads, and set the threads."""
    model = run.components.model(run.folder.seed)
    teacher = load_teacher(run.components)
    threads = _threads(run, data, model, teacher)
    torch.set_num_threads(threads["threads"])
    return BuiltModel(model, _precision(run.folder, run.options, data.device), threads, teacher)


def _recorded(folder: RunFolder, name: str, option: str | int) -> Any:
    """Return the record of that name in run.json; None where it is of another value of the option."""
    recorded = folder.facts().get(name, {})
    if recorded.get("asked") != option:
        return None
    return recorded


def _precision(folder: RunFolder, options: TrainerPlan, device: torch.device) -> PrecisionRecord:
    """Return the precision of a run, and why. A run never changes it: the record in run.json counts."""
    recorded: PrecisionRecord | None = _recorded(folder, "precision", options.precision)
    if recorded is not None:
        return recorded
    if options.precision != "auto":
        return {"asked": options.precision, "precision": str(options.precision)}
    if device.type == "cuda":
        return {"asked": "auto", "precision": "bf16-mixed", "why": "auto is bf16-mixed on a GPU"}
    return {"asked": "auto", "precision": "32", "why": "auto is 32 on a CPU"}


def _threads(run: RunSetup, data: DataSetup, model: nn.Module, teacher: Teacher | None) -> ThreadsRecord:
    """Return the CPU threads of a run, and why. A run keeps them, because the order of additions depends on them."""
    options, components = run.options, run.components
    recorded: ThreadsRecord | None = _recorded(run.folder, "threads", options.threads)
    if recorded is not None:
        return recorded
    if options.threads != "auto":
        return {"asked": options.threads, "threads": options.threads}
    if data.device.type == "cuda":
        return {"asked": "auto", "threads": torch.get_num_threads(), "why": "auto leaves torch's number with a GPU"}
    layout = data.layout
    sample = cost_card.two_samples(data.splits.train, components.data)
    flops = cost_card.flops_per_sample(model, components.objective, sample, teacher, compiled=options.compile)
    flops_of_micro_batch = flops["training"] * layout.batch_size // (layout.micro_batches * layout.world)
    return {"asked": "auto", **thread_count(flops_of_micro_batch, processes=options.devices)}


def flops_on_device(run: RunSetup, data: DataSetup, model: BuiltModel) -> int | None:
    """Return the FLOPs of training on one sample, counted on the device of the run; None where its memory is too small.

    A CPU would take seconds where a GPU takes a moment. The model stays on the device unless it is to be sharded.
    """
    options, objective = run.options, run.components.objective
    sample = cost_card.two_samples(data.splits.train, run.components.data).to(data.device)
    network = model.model.to(data.device)
    try:
        flops = cost_card.flops_per_sample(network, objective, sample, model.teacher, compiled=options.compile)
        return flops["training"]
    except torch.OutOfMemoryError:
        network.zero_grad(set_to_none=True)
        log.warning("device/mfu is left out: %s has too little memory to count the FLOPs of two samples", data.device)
        return None
    finally:
        if options.sharded:
            network.to("cpu")
        if data.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(data.device)


class ThreadCount(TypedDict):
    """A number of CPU threads, and the reason."""

    threads: int
    why: str


def thread_count(flops: int, *, processes: int = 1) -> ThreadCount:
    """Return the CPU threads for a training batch of `flops` FLOPs, and the reason, as they are recorded in the run.

    A small model gains nothing from a second thread, because threads wait for each other at every operation. So
    `trainer.threads=auto` counts the FLOPs of a batch in one process and takes one thread, plus one for every
    `FLOPS_PER_THREAD` of them. The count is a property of the config, however busy the machine is.
    `benchmarks/threads.py` prints the measurements behind the number.

    torch's own number (the cores this process may use), divided among `processes`, is the upper limit.
    OMP_NUM_THREADS overrules the rule.
    """
    available = torch.get_num_threads()
    if os.environ.get("OMP_NUM_THREADS"):
        return {"threads": available, "why": f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"}
    available = max(1, available // processes)
    threads = min(available, 1 + int(flops / FLOPS_PER_THREAD))
    why = f"{flops / 1e9:.3g} GFLOPs a batch, {FLOPS_PER_THREAD / 1e9:g} for each further thread, {available} available"
    return {"threads": threads, "why": why}
