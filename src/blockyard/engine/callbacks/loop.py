"""The only callback Lightning knows of: it beats the time for all the others.

Every hook of every Lightning callback costs at each step; here a step that is due for nothing
costs a comparison. In the order of a due step: metrics are logged, the validation split is
evaluated, watchers judge it, the state is saved, and the run stops if it was asked to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.callbacks.checkpoint import Checkpoint
from blockyard.engine.randomness import reseed
from blockyard.engine.system.clock import process_start
from blockyard.engine.system.interrupts import Interrupted, Interrupts

_AGREE_EVERY = 16  # updates between two agreements of several GPUs on whether to stop
_WINDOWS = 200  # speeds that survive a resume


@dataclass(frozen=True)
class Intervals:
    """How often, in updates, and the seed of the random streams.

    pieces: batches per update; evaluate_every and log_every count updates
    """

    seed: int
    pieces: int
    log_every: int
    evaluate_every: int


class LoopCallback(pl.Callback):
    """Calls watchers, evaluation, logging and saving when they are due.

    begin: called once the model is on its device, before the first step
    evaluate: gives the validation metrics, without a prefix
    tell: writes the metrics of a step down; the process that writes gets a real one
    """

    def __init__(
        self,
        live: RunState,
        beats: Intervals,
        watchers: dict[str, RunCallback],
        interrupts: Interrupts,
        *,
        begin: Callable[[], None],
        evaluate: Callable[[], dict[str, float]],
        tell: Callable[[int, dict[str, float]], None],
    ) -> None:
        self.live = live
        self.beats = beats
        self.named = watchers  # by their names in the config, under which their states are saved
        self.watchers = sorted(watchers.values(), key=lambda watcher: watcher.turn)
        self.interrupts = interrupts
        self.begin = begin
        self.evaluate = evaluate
        self.tell = tell
        self.first_step_seconds: float | None = None  # since this process began
        self.last_values: dict[str, float] = {}  # everything logged at the last logged steps
        self.windows: list[float] = []  # mean seconds of a step, one per logged stretch
        self._evaluated_step = 0
        self._number = 0  # batches of this process, over the run
        self._clock = 0.0
        self._window = (0.0, 0)

    @property
    def checkpoint(self) -> Checkpoint:
        """The watcher that saves."""
        return next(w for w in self.watchers if isinstance(w, Checkpoint))

    # -- Lightning's hooks -------------------------------------------------------------------------

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Take the signals, find the place, and make up for an evaluation that a stop cut off."""
        live = self.live
        live.step = live.start_step = trainer.global_step
        self._number = live.step * self.beats.pieces
        module.update = live.step
        self.interrupts.install()
        loop = trainer.fit_loop.epoch_loop
        if hasattr(loop, "_broadcast_sigterm_tensor"):
            # Lightning's own agreement waits for the device at every step; ours is `_asked_to_stop`.
            loop._broadcast_sigterm_tensor = _nothing
        self.begin()
        for watcher in self.watchers:
            watcher.begin(live)
        if live.step and self._due(live.step) and self._evaluated_step != live.step:
            self._judge(trainer)
            self._save(trainer)
        if live.stop or live.leave:  # a watcher ended the run before it was resumed, or just now
            trainer.should_stop = True
        self.interrupts.check()
        self.interrupts.waiting = True
        self._clock = time.perf_counter()
        self._window = (live.seconds, live.step)

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Set the random streams of this batch."""
        reseed(module.device, self.beats.seed, "train", self._number, trainer.global_rank)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After an update, do what is due."""
        self._number += 1
        if self._number % self.beats.pieces:
            return
        live = self.live
        live.step += 1
        if self.first_step_seconds is None:
            self.first_step_seconds = time.time() - process_start()
        asked = self._asked_to_stop(trainer)
        final = live.step >= live.total
        due, save = final or self._due(live.step), self._save_due()
        logged = due or live.step % self.beats.log_every == 0
        if not (asked or logged or save):
            return
        module.guard.settle()
        if logged:
            self._log_training(trainer, module)
        self._stop_clock()
        if due and not (asked and not final):
            try:
                self._judge(trainer)
            except Interrupted:
                asked = True
        if asked or due or save:
            self._save(trainer)
        if (asked and not final) or live.stop or live.leave:
            trainer.should_stop = True
        self._clock = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """The last step is done."""
        self._close()

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """Close what watchers opened."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs beside weights and optimizer, as plain data."""
        return {
            "step": self.live.step,
            "seconds": self.live.seconds,
            "evaluated": self._evaluated_step,
            "values": self.last_values,
            "windows": self.windows[-_WINDOWS:],
            "first": self.first_step_seconds,
            "tally": list(self.live.learner.tally()),
            "stop": self.live.stop,
            "watchers": {name: watcher.state() for name, watcher in self.named.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        # A run that was stopped after its last step makes none in this process.
        self.live.step = self.live.start_step = state_dict["step"]
        self.live.seconds = state_dict["seconds"]
        self.windows = list(state_dict["windows"])
        self.first_step_seconds = state_dict["first"]
        self._evaluated_step = state_dict["evaluated"]
        self.last_values = dict(state_dict["values"])
        self.live.learner.load_tally(*state_dict["tally"])
        self.live.stop = state_dict["stop"]
        for name, watcher in self.named.items():
            state = state_dict["watchers"].get(name)
            if state:
                watcher.load_state(state)

    # -- what is due -------------------------------------------------------------------------------

    def _due(self, step: int) -> bool:
        return step % self.beats.evaluate_every == 0 or step >= self.live.total

    def _save_due(self) -> bool:
        every = self.checkpoint.every
        return every is not None and self.live.step % every == 0

    def _asked_to_stop(self, trainer: pl.Trainer) -> bool:
        asked = self.interrupts.signum is not None
        if trainer.world_size == 1:
            return asked
        # One process may have been told alone; all must leave after the same step. Asking stops a GPU.
        apart = 1 if trainer.strategy.root_device.type == "cpu" else _AGREE_EVERY
        if self.live.step % apart:
            return False
        return bool(trainer.strategy.reduce_boolean_decision(asked, all=False))

    def _log_training(self, trainer: pl.Trainer, module: Any) -> None:
        live = self.live
        self._stop_clock()
        values: dict[str, Any] = {}
        loss = module.take_loss()
        if loss is not None:
            values["train/loss"] = trainer.strategy.reduce(loss.float(), reduce_op="mean")
        for watcher in self.watchers:
            values |= watcher.measure(live)
        values |= {
            "epoch": live.step / live.steps_per_epoch,
            "samples": live.step * live.batch_size,
            "tokens": live.step * live.batch_size * live.tokens,
        }
        numbers = {name: float(value) for name, value in values.items()}  # the device is waited for here
        self._stop_clock()
        numbers["seconds"] = round(live.seconds, 3)
        steps = live.step - self._window[1]
        if steps:
            self.windows.append((live.seconds - self._window[0]) / steps)
        self._window = (live.seconds, live.step)
        self._tell(numbers)
        for watcher in self.watchers:
            watcher.logged(live, numbers)

    def _tell(self, values: dict[str, float]) -> None:
        self.last_values |= values
        self.tell(self.live.step, values)

    def _judge(self, trainer: pl.Trainer) -> None:
        live = self.live
        values = {f"val/{name}": value for name, value in self.evaluate().items()}
        self._evaluated_step = live.step
        self._tell(values)
        for watcher in self.watchers:
            watcher.evaluated(live, values)
        # Who leaves may be decided by one process alone; all must do it after the same step.
        if trainer.world_size > 1 and trainer.strategy.reduce_boolean_decision(bool(live.leave), all=False):
            live.leave = live.leave or "another process leaves"
        self._clock = time.perf_counter()

    def _save(self, trainer: pl.Trainer) -> None:
        self.live.learner.guard.settle()

        def write(path: Path) -> None:
            trainer.save_checkpoint(path)

        self.checkpoint.save(self.live, write)

    def _stop_clock(self) -> None:
        now = time.perf_counter()
        if self._clock:
            self.live.seconds += now - self._clock
        self._clock = now

    def _close(self) -> None:
        self.interrupts.waiting = False
        for watcher in self.watchers:
            watcher.end(self.live)


def _nothing() -> None:
    pass
