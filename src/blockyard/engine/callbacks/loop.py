"""The Lightning callback that runs everything besides the steps: logging, evaluation, saving, stopping.

Every hook of every Lightning callback costs at each step; here a step with nothing due costs a comparison. If
everything is due, the order is: metrics are logged, the validation split is evaluated, callbacks see the
result, the state is saved, and the run stops if a stop was requested. `LoopActions` does each of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.profilers import PassThroughProfiler
from torch import Tensor

from blockyard.engine.callbacks.base import RunState, StateDict
from blockyard.engine.callbacks.callback_set import CallbackSet
from blockyard.engine.callbacks.lightning_hooks import around_validation
from blockyard.engine.callbacks.stopwatch import Stopwatch
from blockyard.engine.faults.interrupts import Interrupted, Interrupts
from blockyard.engine.faults.nan_guard import check_weights
from blockyard.engine.faults.peers import agree_on_end, agree_on_signal
from blockyard.engine.lightning.patches import count_steps, next_batch
from blockyard.engine.system.randomness import reseed
from blockyard.runs.checkpoint import LOOP
from blockyard.runs.metric_name import MetricName


class LoopCallback(pl.Callback):
    """Calls the run's callbacks, evaluation, logging and saving when they are due.

    log_metrics, evaluate: as in `LoopActions`
    """

    state_key = LOOP  # in checkpoints; it stays, whatever the class is called

    def __init__(
        self,
        state: RunState,
        intervals: Intervals,
        callbacks: CallbackSet,
        interrupts: Interrupts,
        *,
        log_metrics: Callable[[int, dict[str, float]], None],
        evaluate: Callable[[], dict[str, float]],
    ) -> None:
        self.state = state
        self.intervals = intervals
        self.callbacks = callbacks
        self.interrupts = interrupts
        self.stopwatch = Stopwatch(state)
        if state.max_seconds is not None:
            state.learner.expected_total = self.stopwatch.expected_total
        self.actions = LoopActions(state, callbacks, self.stopwatch, log_metrics=log_metrics, evaluate=evaluate)
        self._batches = 0  # of this process, over the run
        self._strategy: Any = None  # of several processes
        self._began = False  # whether Lightning began the training of this process
        self._interrupted = False  # a signal reached any of the processes, as all of them know
        # The metrics of an average have its name behind an @, and one average may select the best step.
        for name in callbacks.averages:
            if callbacks.named[name].selects:
                state.monitor = (f"{state.monitor[0]}@{name}", state.monitor[1])

    # -- Lightning's hooks -------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Install the signal handlers, find the position in the run, repeat an interrupted evaluation."""
        state = self.state
        # A checkpoint has the weights that are evaluated in the model, and the others in the optimizer's state.
        module.use_trained_weights(trainer.optimizers)
        state.step = state.start_step = trainer.global_step
        self._batches = state.step * self.intervals.micro_batches
        if state.step and self.callbacks.lightning:
            module.number_step(state.step)  # a callback's schedule set the rate, which the checkpoint restored
        else:
            module.start_step(state.step, trainer.optimizers[0])
        self._strategy = trainer.strategy if trainer.world_size > 1 else None
        self._began = True
        # Again: a library that was imported or set up since may have installed handlers.
        self.interrupts.install()
        for callback in self.callbacks:
            callback.on_run_start(state)
        if state.step and self._due().evaluate and self.actions.evaluated_step != state.step:
            self.actions.evaluate(trainer, module)
            self._agree_on_end(trainer)
            self.actions.save(trainer, module)
        # A callback, or the time, ended the run before it was resumed or just now.
        if state.stop or state.pause or state.out_of_time:
            trainer.should_stop = True
        self.interrupts.check()
        # From here to `_close` a signal is only recorded, and the step in progress ends first.
        self.interrupts.waiting = True
        self.stopwatch.start()

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Set the random streams of this batch."""
        reseed(module.device, self.intervals.seed, "train", self._batches, trainer.global_rank)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After the last micro-batch of a step, take the actions that are due; if there are none, take quiet steps.

        Quiet steps go without Lightning's loop and hooks until something is due. With the hooks a step of 2 ms takes
        1.4 times as long as in a bare loop, without them 1.1 times (docs/performance.md).
        """
        self._batches += 1
        if self._batches % self.intervals.micro_batches:
            return
        state = self.state
        state.step += 1
        for callback in self.callbacks.at_steps:
            callback.on_step(state)
        self.stopwatch.step()
        self.stopwatch.tick()
        interrupted = self._agree_on_signal(trainer)
        due = self._due(stopping=trainer.should_stop, interrupted=interrupted)
        if not (due.log or due.save):
            if not self._take_quiet_steps(trainer, module):
                return
            due = self._due(interrupted=self._interrupted)
        leave = due.leave
        # On a GPU the guard has only noted a bad step; nothing after it may be logged or saved.
        module.guard.raise_if_bad()
        if due.log:
            self.actions.log_training(trainer, module)
        self.stopwatch.pause()
        if due.evaluate:
            try:
                self.actions.evaluate(trainer, module)
            except Interrupted:
                leave = not due.final
        if due.log:
            self._agree_on_end(trainer)
        if due.save:
            self.actions.save(trainer, module)
        if leave or state.stop or state.pause or state.out_of_time:
            trainer.should_stop = True
        self.stopwatch.resume()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Evaluate the weights that Lightning callbacks set at the end, such as their average; close."""
        if self.callbacks.lightning or not self.state.finished:
            self._end(trainer, module)
        self._close()

    def evaluate_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Evaluate the last step where a signal came before that, and no step was left to take after the resume."""
        if self.state.finished and self.actions.evaluated_step != self.state.step and not self._interrupted:
            self._strategy = trainer.strategy if trainer.world_size > 1 else None
            if not self._began:  # no step was left, so that Lightning began no training
                for callback in self.callbacks:
                    callback.on_run_start(self.state)
            self._end(trainer, module)

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """Close everything that callbacks opened. Signals are recorded only, while this process says why it ends."""
        self.interrupts.waiting = True
        self.callbacks.close_all(self.state)

    def state_dict(self) -> StateDict:
        """Return the state that an exact resume needs besides weights and optimizer, as plain data.

        "tally" and "watchers" are the losses and the callbacks: older checkpoints have these keys too.
        """
        return {
            "step": self.state.step,
            **self.actions.state_dict(),
            "tally": list(self.state.learner.losses.state(self._strategy)),
            "auxiliary": list(self.state.learner.auxiliaries.state(self._strategy)),
            "stop": self.state.stop,
            "watchers": self.callbacks.state_dict(),
            **self.stopwatch.state_dict(),
        }

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the state that `state_dict` returned."""
        # A run that was stopped after its last step takes none in this process.
        self.state.step = self.state.start_step = state_dict["step"]
        self.state.stop = state_dict["stop"]
        self.actions.load_state_dict(state_dict)
        self.stopwatch.load_state_dict(state_dict)
        learner = self.state.learner
        for losses, saved in (
            (learner.losses, state_dict["tally"]),
            (learner.auxiliaries, state_dict.get("auxiliary", (0.0, 0))),
        ):
            total, count = saved
            losses.load_state(total, count, learner.device)
        self.callbacks.load_state_dict(state_dict["watchers"])
        self.state.best = self.callbacks.checkpoint.best_metrics

    # -- steps that are taken without the hooks above ----------------------------------------------

    @property
    def batches(self) -> int:
        """The number of the batch in progress, over the run."""
        return self._batches

    def quiet_steps(self) -> int:
        """Return how many steps follow, from the one in progress on, with nothing due after them.

        It is 0 where a callback sees every step or micro-batch, and at the first step of this process.
        """
        state, intervals = self.state, self.intervals
        if self.callbacks.lightning or self.callbacks.at_steps or intervals.micro_batches > 1:
            return 0
        # The first step of a process is measured by `on_train_batch_end`.
        if state.step == state.start_step:
            return 0
        every = [intervals.log_every, intervals.evaluate_every, self.callbacks.checkpoint.every]
        due = min(state.total, *(state.step + count - state.step % count for count in every if count))
        return due - state.step - 1

    def _take_quiet_steps(self, trainer: pl.Trainer, module: Any) -> bool:
        """Take the steps with nothing due after them. Return whether one of them is the last, by a signal or the time.

        Only in a run of one process that takes its steps itself; fp16's scale, a profiler and the scheduler of a
        callback of Lightning belong to its loop.
        """
        steps = self.quiet_steps()
        alone = trainer.world_size == 1 and module.stacked is None
        profiled = not isinstance(trainer.profiler, PassThroughProfiler)  # type: ignore[attr-defined]
        if not steps or not alone or profiled or module.settings.half or trainer.lr_scheduler_configs:
            return False
        optimizer, precision = trainer.optimizers[0], trainer.precision_plugin
        first = self.state.step
        try:
            for _ in range(steps):
                batch = next_batch(trainer)
                self.on_train_batch_start(trainer, module, batch, self._batches)
                module.take_step(batch, optimizer, precision.train_step_context)
                self.skip(1)
                # The clock was read for the rate of the next step.
                if self._agree_on_signal(trainer) or self.state.out_of_time:
                    return True
        finally:
            # Once for all: the progress objects of Lightning cost as much as a small step.
            count_steps(trainer, self.state.step - first)
        return False

    def skip(self, steps: int) -> None:
        """Count steps that were taken without `on_train_batch_end`; as many as `quiet_steps` says at most."""
        self._batches += steps * self.intervals.micro_batches
        self.state.step += steps

    # -- what is due -------------------------------------------------------------------------------

    def _due(self, *, stopping: bool = False, interrupted: bool = False) -> Due:
        """Return the actions that are due after the last step. stopping: a Lightning callback ends the training."""
        state = self.state
        return due_after(
            state.step,
            state.last_step,
            self.intervals,
            self.callbacks.checkpoint.every,
            stopping=stopping,
            interrupted=interrupted,
            evaluates_later=bool(self.callbacks.lightning),
        )

    def _agree_on_signal(self, trainer: pl.Trainer) -> bool:
        """Return whether the run was interrupted: it stays so once a signal reached one of its processes."""
        self._interrupted |= agree_on_signal(trainer, self.interrupts, self.state.step)
        return self._interrupted

    def _agree_on_end(self, trainer: pl.Trainer) -> None:
        """Let all processes end or leave the run after this step where a callback of one of them does."""
        self._note_lightning_stop(trainer)
        self.state.stop, self.state.pause = agree_on_end(trainer, self.state.stop, self.state.pause)

    def _note_lightning_stop(self, trainer: pl.Trainer) -> None:
        """State a reason where Lightning ends the training before its last step."""
        if trainer.should_stop and not (self._interrupted or self.state.pause or self.state.finished):
            self.state.stop = "a Lightning callback stopped it"

    def _end(self, trainer: pl.Trainer, module: Any) -> None:
        """Evaluate and save the last step, unless the run is left before its end, or nothing says why it ended.

        In the latter case Lightning may have counted half a step, and no run can resume from there.
        """
        state = self.state
        self._note_lightning_stop(trainer)
        if state.pause or not state.finished or (self._interrupted and not state.complete):
            return
        if self.actions.evaluated_step != state.step:
            try:
                self.actions.evaluate(trainer, module)
            except Interrupted:
                # A resumed run evaluates the last step, see `evaluate_end`; an earlier one is saved already.
                if state.complete:
                    self.actions.save(trainer, module)
                raise
            self.actions.save(trainer, module)

    def _close(self) -> None:
        self.interrupts.waiting = False
        for callback in self.callbacks:
            callback.on_run_end(self.state)


@dataclass(frozen=True)
class Intervals:
    """How often to log and evaluate, and the seed of the random streams.

    micro_batches: of a step; evaluate_every and log_every count steps
    """

    seed: int
    micro_batches: int
    log_every: int
    evaluate_every: int


@dataclass(frozen=True)
class Due:
    """The actions that are due after a step, in their order.

    log: log the training metrics; evaluate: evaluate the validation split; save: save a checkpoint
    leave: end the training before its last step; final: no step follows
    """

    log: bool
    evaluate: bool
    save: bool
    leave: bool
    final: bool


def due_after(
    step: int,
    total: int,
    intervals: Intervals,
    save_every: int | None,
    *,
    stopping: bool = False,
    interrupted: bool = False,
    evaluates_later: bool = False,
) -> Due:
    """Return the actions that are due after step number `step`, from 1, of `total`.

    save_every: steps between two checkpoints besides the checkpoints of evaluations, or None
    stopping: a Lightning callback ends the training; interrupted: a signal came
    evaluates_later: weights may still change after the last step; `on_train_end` evaluates and saves them then
    """
    final = step >= total or stopping
    evaluate = final or step % intervals.evaluate_every == 0
    log = evaluate or step % intervals.log_every == 0
    save = evaluate or interrupted or (save_every is not None and step % save_every == 0)
    if final:
        at_once = not evaluates_later
        return Due(log=True, evaluate=at_once, save=at_once, leave=False, final=True)
    # A signal gives a run seconds to end, and an evaluation may take minutes: the resumed run makes up for it.
    return Due(log=log, evaluate=evaluate and not interrupted, save=save, leave=interrupted, final=False)


class LoopActions:
    """Logs metrics, evaluates the validation split and saves the state; callbacks see each result.

    log_metrics: writes the metrics of a step; does nothing in the processes that do not write
    evaluate: returns the validation metrics, without a prefix
    last_values: everything logged at the last logged steps
    evaluated_step: the last step that was evaluated
    """

    def __init__(
        self,
        state: RunState,
        callbacks: CallbackSet,
        stopwatch: Stopwatch,
        *,
        log_metrics: Callable[[int, dict[str, float]], None],
        evaluate: Callable[[], dict[str, float]],
    ) -> None:
        self.state = state
        self.callbacks = callbacks
        self.stopwatch = stopwatch
        self.last_values: dict[str, float] = {}
        self.evaluated_step = 0
        self._write_metrics = log_metrics
        self._validation_metrics = evaluate
        self._logged = [0, 0]  # rows of metrics.csv over the run, and the step of the last one

    def log_training(self, trainer: pl.Trainer, module: Any) -> None:
        """Log the mean loss since the last time, the metrics of callbacks and the position in the run."""
        state = self.state
        values: dict[str, Tensor] = {}
        loss = module.losses.take()
        if loss is not None:
            values["train/loss"] = trainer.strategy.reduce(loss.float(), reduce_op="mean")
        auxiliary = module.auxiliaries.take()
        if auxiliary is not None:
            values["train/auxiliary"] = trainer.strategy.reduce(auxiliary.float(), reduce_op="mean")
        for path, part in module.after_step.items():
            block = path.rpartition(".")[0]
            for name, value in part.training_metrics().items():
                values[str(MetricName.of_layer(name, block))] = trainer.strategy.reduce(value.float(), reduce_op="mean")
        numbers = {name: float(value) for name, value in values.items()}
        if module.device.type == "cuda":
            torch.cuda.synchronize(module.device)  # the end of the step is training too
        self.stopwatch.pause()
        for callback in self.callbacks:
            numbers |= {name: float(value) for name, value in callback.metrics(state).items()}
        self.stopwatch.resume()  # the time that callbacks take does not count as training
        samples, tokens = state.seen
        numbers |= {"epoch": state.step / state.steps_per_epoch, "samples": samples, "tokens": tokens}
        if state.planned is not None:
            numbers |= {f"samples@{part}": count for part, count in state.planned.drawn(state.step).items()}
        numbers["seconds"] = self.stopwatch.lap()
        self._record(trainer, numbers)
        for callback in self.callbacks:
            callback.on_log(state, numbers)

    def evaluate(self, trainer: pl.Trainer, module: Any) -> None:
        """Log the validation metrics of the weights, and of the other weights that callbacks keep."""
        with module.evaluated_weights(trainer.optimizers):
            self._evaluate(trainer, module)
        self.stopwatch.resume()

    def _evaluate(self, trainer: pl.Trainer, module: Any) -> None:
        state = self.state
        with around_validation(trainer, module, self.callbacks.lightning):
            values = {f"val/{name}": value for name, value in self._validation_metrics().items()}
            for average in self.callbacks.averages:
                with self.callbacks.named[average].in_place():
                    values |= {f"val/{name}@{average}": value for name, value in self._validation_metrics().items()}
            self.evaluated_step = state.step
            self._record(trainer, values)
        for callback in self.callbacks:
            callback.on_evaluate(state, values)

    def save(self, trainer: pl.Trainer, module: Any) -> None:
        """Save a checkpoint of weights that are finite."""
        module.guard.raise_if_bad()
        # An optimizer may spoil weights although gradients are finite.
        check_weights(module.model, self.state.step)
        with module.evaluated_weights(trainer.optimizers):
            self.callbacks.checkpoint.save(self.state, trainer.save_checkpoint)

    def log_metrics(self, step: int, values: dict[str, float]) -> None:
        """Write the metrics of a step and count its row, so that a resumed run knows whether rows were lost."""
        if not self._logged[0] or step != self._logged[1]:
            self._logged = [self._logged[0] + 1, step]
        self._write_metrics(step, values)

    def _record(self, trainer: pl.Trainer, values: dict[str, float]) -> None:
        self.last_values |= values
        self.log_metrics(self.state.step, values)
        if self.callbacks.lightning:
            trainer.callback_metrics.update({name: torch.tensor(value) for name, value in values.items()})

    def state_dict(self) -> StateDict:
        """Return the metrics that were evaluated and logged last, as plain data."""
        return {"evaluated": self.evaluated_step, "values": self.last_values, "logged": list(self._logged)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore the state that `state_dict` returned."""
        self.evaluated_step = state_dict["evaluated"]
        self.last_values = dict(state_dict["values"])
        self._logged = list(state_dict.get("logged") or [0, 0])
