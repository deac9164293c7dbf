"""Runs of one process that take their training steps together.

Each run is an ordinary one, in a thread of its own, with its own folder, data order, random streams, evaluation,
checkpoints and end. Threads take turns (`Turns`), so that nothing of a run sees another one. Only the losses and
gradients of a training step are computed for all at once: a run that has read its batch waits until all others have
read theirs, or have ended.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.callbacks.loop import LoopCallback
from blockyard.engine.faults.interrupts import Interrupts
from blockyard.engine.module import Learner
from blockyard.engine.stacked.burst import Burst, Taker, draw_as_alone
from blockyard.engine.stacked.step import (
    NotStackableError,
    StackedResult,
    StackedWeights,
    StepResult,
    UnlikeBatchesError,
    check_first_step,
    refusing,
)

log = logging.getLogger("blockyard")


class ProcessState:
    """The parts of a process that a run takes for its own: random generators, standard streams, streams of handlers."""

    def __init__(self) -> None:
        self.random = random.getstate()
        self.numpy = np.random.get_state()
        self.torch = torch.random.get_rng_state()
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.cuda = torch.cuda.get_rng_state() if cuda else None
        self.streams = sys.stdout, sys.stderr
        self.files = os.dup(1), os.dup(2)
        self.handlers = [
            (handler, handler.stream)
            for handler in logging.getLogger().handlers
            if type(handler) is logging.StreamHandler
        ]

    def restore(self) -> None:
        """Give the process the parts back that it had when this was created; once only."""
        random.setstate(self.random)
        np.random.set_state(self.numpy)
        torch.random.set_rng_state(self.torch)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)
        sys.stdout, sys.stderr = self.streams
        for number, file in enumerate(self.files, start=1):
            os.dup2(file, number)
            os.close(file)
        for handler, stream in self.handlers:
            handler.stream = stream  # `setStream` would flush the other one, which may be closed


class Turns:
    """Runs functions in threads that take turns: a thread runs until it passes its turn on, or ends.

    Between two turns of a thread the others change nothing that it would notice: see `ProcessState`.
    """

    def __init__(self) -> None:
        self._gates: dict[int, threading.Semaphore] = {}  # of the threads that have not ended, by number
        self._own = threading.local()

    @property
    def alive(self) -> int:
        """The number of threads that have not ended."""
        return len(self._gates)

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Call each function in a thread of its own, the first one first, and return when all have ended.

        The calling thread waits, so that the handler of a signal runs in it at once. An error of a function is raised
        here, after the others have ended.
        """
        errors: list[BaseException] = []
        before = ProcessState()
        self._gates = {number: threading.Semaphore(0) for number in range(len(functions))}
        threads = [
            threading.Thread(target=self._thread, args=(number, function, ProcessState(), errors))
            for number, function in enumerate(functions)
        ]
        # All wait at their gates until the first one is opened.
        for thread in threads:
            thread.start()
        if threads:
            self._gates[0].release()
        for thread in threads:
            thread.join()
        before.restore()
        if errors:
            raise errors[0]

    def pass_on(self) -> None:
        """Let the next thread run, and return when it is this one's turn again."""
        number = self._own.number
        following = self._after(number)
        if following == number:
            return
        state = ProcessState()
        self._gates[following].release()
        self._gates[number].acquire()
        state.restore()

    def _after(self, number: int) -> int:
        """Return the number of the thread whose turn is next."""
        return next((other for other in self._gates if other > number), next(iter(self._gates)))

    def _thread(
        self, number: int, function: Callable[[], None], state: ProcessState, errors: list[BaseException]
    ) -> None:
        self._own.number = number
        self._gates[number].acquire()
        state.restore()
        try:
            function()
        except BaseException as error:  # raised again by `run`
            errors.append(error)
        finally:
            following = self._after(number)
            del self._gates[number]
            if following != number:
                self._gates[following].release()


class StackedRuns:
    """The state that the runs share.

    reason: why the runs take their steps alone, from some step on; None as long as they do not
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._turns = Turns()
        self._members: dict[Learner, StackedMember] = {}  # in the order in which they joined
        self._takers: dict[Learner, Taker] = {}
        self._waiting: dict[Learner, Batch] = {}
        self._results: dict[Learner, StepResult | Batch | Exception] = {}
        self._gradients: dict[Learner, dict[str, Tensor | None] | None] = {}
        self._weights: StackedWeights | None = None
        self._checked = False
        self._share = 0.0  # of each run, in the seconds of what was computed together last

    def run(self, runs: Sequence[Callable[[], None]]) -> None:
        """Call each function until all have ended. Each trains a run with a `StackedMember` among its callbacks.

        A signal that stops runs reaches all of them: they save after the step in progress, or end before the first one.
        """
        with Interrupts() as interrupts, interrupts.passing_on():
            self._turns.run(runs)

    def join(self, learner: Learner, member: StackedMember) -> None:
        """Let a learner take its steps with the others."""
        learner.stacked = self
        self._members[learner] = member
        trainer: Any = learner.trainer
        loop = next(callback for callback in trainer.callbacks if isinstance(callback, LoopCallback))
        self._takers[learner] = Taker(learner, loop)

    # -- `StackedSteps` of a learner ---------------------------------------------------------------

    def losses(self, learner: Learner, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the losses of a learner on its batch, once all other runs have come to a step or have ended."""
        self._gradients[learner] = None
        member = self._members[learner]
        if self.reason is None:
            self._waiting[learner] = batch
            clock = self._takers[learner].loop.stopwatch
            clock.pause()  # the turns of others are not this run's time
            while learner not in self._results:
                if len(self._waiting) == self._turns.alive:
                    self._step()
                else:
                    self._turns.pass_on()
            clock.resume()
            clock.add(self._share)
            result = self._results.pop(learner)
            # The others may have taken steps together with this run, so that another step is in progress now.
            draw_as_alone(self._takers[learner])
            if isinstance(result, Exception):
                raise result
            if isinstance(result, StepResult):
                member.together += 1
                self._gradients[learner] = result.gradients
                return result.loss, result.auxiliary
            if self.reason is not None:
                log.warning("the runs of this process take their steps alone: %s", self.reason)
            batch = result
        member.alone += 1
        return learner.loss_and_auxiliary(batch)

    def backward(self, learner: Learner, loss: Tensor) -> None:
        """Add the gradients that were computed with the losses, or compute them if the step was taken alone."""
        gradients = self._gradients.pop(learner)
        if gradients is None:
            loss.backward()
            return
        micro_batches = learner.trainer.accumulate_grad_batches  # whose losses Lightning divides by their number
        for name, weight in learner.model.named_parameters():
            gradient = gradients.get(f"model.{name}")
            if gradient is None:
                continue
            if micro_batches > 1:
                gradient = gradient / micro_batches
            weight.grad = gradient if weight.grad is None else weight.grad + gradient

    # -- all together ------------------------------------------------------------------------------

    def _step(self) -> None:
        """Compute the losses and gradients that all learners wait for, of as many steps as nothing is due after.

        A learner that has to compute its losses itself gets the batch. A learner with data that cannot be read gets the
        error.
        """
        waiting = self._waiting
        self._waiting = {}
        learners = [learner for learner in self._members if learner in waiting]
        self._results = {learner: waiting[learner] for learner in learners}
        self._share = 0.0
        if len(learners) == 1:  # it gets its batch back, and computes its losses itself
            return
        began = time.perf_counter()
        try:
            self._together(learners)
        except NotStackableError as error:
            if not isinstance(error, UnlikeBatchesError):  # which are those of this step alone
                self._part(str(error))
        except Exception as error:  # between the steps of a burst: none of the runs can go on
            self._results = dict.fromkeys(learners, error)
        self._share = (time.perf_counter() - began) / len(learners)

    def _together(self, learners: list[Learner]) -> None:
        if self._weights is None or self._weights.learners != learners:
            with refusing():
                self._weights = StackedWeights(learners)
        weights = self._weights
        if not self._checked:
            # Each gets what it has computed alone, so that the first step has its bits in any case.
            alone = check_first_step(weights, self._batches(learners))
            self._checked = True
            self._results = dict(zip(learners, alone, strict=True))
            return
        takers = [self._takers[learner] for learner in learners]
        result: StackedResult | None = weights.step(self._batches(learners))
        quiet = min(taker.quiet for taker in takers)
        if quiet and result is not None:
            burst = Burst(takers, weights)
            try:
                result = self._burst(burst, result, quiet, learners)
            finally:
                burst.close()
        if result is not None:
            self._results = {learner: result.of(number) for number, learner in enumerate(learners)}

    def _burst(self, burst: Burst, result: StackedResult, quiet: int, learners: list[Learner]) -> StackedResult | None:
        """Take steps; return the result of the first step not taken, None if each learner has to compute it."""
        assert self._weights is not None
        for _ in range(quiet):
            if burst.interrupted:
                return result
            try:
                if not burst.apply(result):
                    return result
            except Exception as error:  # some weights may have changed: none of the runs can go on
                self._results = dict.fromkeys(learners, error)
                return None
            for learner in learners:
                self._members[learner].together += 1
            self._results = dict(zip(learners, burst.batches(), strict=True))
            if any(isinstance(result, Exception) for result in self._results.values()):
                return None
            result = self._weights.step(self._batches(learners))
        return result

    def _batches(self, learners: list[Learner]) -> list[Batch]:
        """Return the batches that the learners have to take their steps on."""
        results = [self._results[learner] for learner in learners]
        return [result for result in results if isinstance(result, Batch)]

    def _part(self, reason: str) -> None:
        """Let the runs take their steps alone from here on."""
        self.reason = reason
        self._weights = None


class StackedMember(RunCallback):
    """Lets a run take its steps together with the others of `StackedRuns`.

    together, alone: the steps of this process that were taken with others and without
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})

    def __init__(self, runs: StackedRuns) -> None:
        self._runs = runs
        self.together = self.alone = 0

    def on_run_start(self, state: RunState) -> None:
        """Join the others."""
        self._runs.join(state.learner, self)

    def plain(self) -> dict[str, Any]:
        """Return how the steps of this process were taken, for run.json."""
        counts: dict[str, Any] = {"together": self.together, "alone": self.alone}
        if self._runs.reason is not None:
            counts["reason"] = self._runs.reason
        return counts
