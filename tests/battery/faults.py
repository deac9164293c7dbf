"""Faults that a component may have, and the places of a run where one can have them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch
from torch import nn

from blockyard.engine.callbacks.base import RunCallback
from blockyard.engine.job import Job
from blockyard.engine.loggers import run_log
from blockyard.engine.loggers.base import RunLogger

Value = TypeVar("Value")


class Unprintable(Exception):
    """An exception whose text cannot be made."""

    def __str__(self) -> str:
        raise KeyError("no text")

    __repr__ = __str__


class Plain(BaseException):
    """No Exception, and none of Python's own."""


RAISED: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("planted"),
    "exit0": lambda: SystemExit(0),
    "exit3": lambda: SystemExit(3),
    "exit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "BaseException": lambda: Plain("planted"),
    "MemoryError": MemoryError,
    "RecursionError": lambda: RecursionError("planted"),
    "surrogate": lambda: ValueError("a file named \udcff\ud800"),
    "escape": lambda: ValueError("\x1b[31mred\x1b[0m \x07\x00 \u202egnp"),
    "lines": lambda: ValueError("\n\n  first\r\nsecond"),
    "unprintable": Unprintable,
    "group": lambda: BaseExceptionGroup("planted", [KeyboardInterrupt(), SystemExit(0)]),
}
NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "1e38": 1e38}
STEP = 10  # after the evaluation and the save of step 8


class Fault:
    """Something wrong that happens in a job from step `STEP` on, or at once where `early`."""

    def __init__(self, kind: str, *, early: bool = False) -> None:
        self.kind = kind
        self.early = early
        self.job: Job | None = None

    def __call__(self, value: Value = None) -> Value:  # type: ignore[assignment]
        """Raise, or return `value` with a wrong number in it."""
        if not self.early and (self.job is None or self.job.state.step < STEP):
            return value
        if self.kind in RAISED:
            raise RAISED[self.kind]()
        number = NUMBERS[self.kind]
        if isinstance(value, torch.Tensor):
            return value * number if value.dtype.is_floating_point else value  # type: ignore[return-value]
        return number  # type: ignore[return-value]


class _Callback(RunCallback):
    """Has a fault in one of its hooks."""

    def __init__(self, hook: str, fault: Fault) -> None:
        def planted(*arguments: Any) -> Any:
            fault()
            return original(*arguments)

        original = getattr(self, hook)
        setattr(self, hook, planted)


class _Lightning(pl.Callback):
    """Has a fault in one of its hooks; without one it does nothing."""

    def __init__(self, hook: str | None = None, fault: Fault | None = None) -> None:
        if hook and fault:

            def planted(*arguments: Any, **settings: Any) -> Any:
                fault()
                return original(*arguments, **settings)

            original = getattr(self, hook)
            setattr(self, hook, planted)


class _Logger(RunLogger):
    """Has a fault in one of its hooks."""

    def __init__(self, hook: str, fault: Fault) -> None:
        self.hook, self.fault = hook, fault

    def start(self, folder: Any, config: dict[str, Any]) -> None:
        self._act("start")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._act("log")

    def finish(self, state: str, summary: Mapping[str, Any]) -> None:
        self._act("finish")

    def _act(self, hook: str) -> None:
        if hook == self.hook:
            self.fault()


def _around(owner: Any, name: str, fault: Fault, *, before: bool = True) -> None:
    """Let a method of an object have the fault: when it is called, or in what it returns."""
    original = getattr(owner, name)

    def planted(*arguments: Any, **settings: Any) -> Any:
        if before and fault.kind in RAISED:
            fault()
        return fault(original(*arguments, **settings))

    object.__setattr__(owner, name, planted)


def _forward(job: Job, fault: Fault) -> None:
    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        return fault(output) if module.training else output

    job.learner.model.register_forward_hook(hook)


def _evaluation(job: Job, fault: Fault) -> None:
    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        return output if module.training else fault(output)

    job.learner.model.register_forward_hook(hook)


def _backward(job: Job, fault: Fault) -> None:
    next(job.learner.model.parameters()).register_hook(lambda gradient: fault(gradient))


def _loss(job: Job, fault: Fault) -> None:
    _around(job.learner.objective, "loss", fault)


def _metrics(job: Job, fault: Fault) -> None:
    _around(job.evaluator.objective, "metrics", fault)


def _schedule(job: Job, fault: Fault) -> None:
    _around(job.learner.schedule, "factor", fault)


def _optimizer(job: Job, fault: Fault) -> None:
    original = job.learner.optimizer_builder.build

    def build(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = original(model)

        def planted(*_: Any) -> None:
            for weight in model.parameters():
                weight.data.copy_(fault(weight.data))

        optimizer.register_step_post_hook(planted)
        return optimizer

    object.__setattr__(job.learner.optimizer_builder, "build", build)


def _prepare(job: Job, fault: Fault) -> None:
    _around(job.learner.objective, "prepare", fault, before=True)


COMPONENTS: dict[str, Callable[[Job, Fault], None]] = {
    "forward": _forward,
    "evaluation": _evaluation,
    "backward": _backward,
    "loss": _loss,
    "metrics": _metrics,
    "schedule": _schedule,
    "optimizer": _optimizer,
    "prepare": _prepare,
}
WITH_NUMBERS = ("forward", "backward", "loss", "schedule", "optimizer")
RUN_HOOKS = ("on_run_start", "on_step", "metrics", "on_log", "on_evaluate", "on_run_end", "state_dict")
LOGGER_HOOKS = ("start", "log", "finish")
_NOT_TRAINING = ("test", "predict", "sanity", "exception", "load", "validation_batch")  # evaluation is our own
LIGHTNING_HOOKS = sorted(
    name
    for name in vars(pl.Callback)
    if name.startswith(("on_", "setup", "teardown")) and not any(part in name for part in _NOT_TRAINING)
)
_AT_START = ("setup", "on_fit_start", "on_train_start", "on_train_epoch_start", "on_run_start", "start")
LIGHTNING = "lightning"


def plant(place: str, job: Job, fault: Fault | None) -> None:
    """Put a fault into a job that is ready to train; without one, only what changes how the job runs."""
    if fault is not None:
        fault.job = job
        fault.early = place.partition(".")[2] in _AT_START
    kind, _, hook = place.partition(".")
    if kind == LIGHTNING:
        job.loop.callbacks.lightning = (_Lightning(hook, fault) if fault else _Lightning(),)
    elif fault is None:
        return
    elif kind == "callback":
        callback = _Callback(hook, fault)
        callbacks = job.loop.callbacks
        callbacks.ordered.append(callback)
        callbacks.named = {**callbacks.named, "fault": callback}
        if hook == "on_step":
            callbacks.at_steps.append(callback)
    else:
        COMPONENTS[kind](job, fault)


def plant_logger(hook: str, fault: Fault) -> None:
    """Let the runs of this process have a logger with a fault."""
    from blockyard.engine import run

    fault.early = True
    run.run_loggers = lambda config: [_Logger(hook, fault)]
    run_log._START_SECONDS = 0.0
