"""Threads of which one runs at a time, each as if it had the process to itself."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch


class ProcessState:
    """What a run takes for its own of the process: the random generators, the standard streams, who logs where."""

    def __init__(self) -> None:
        self.random = random.getstate()
        self.numpy = np.random.get_state()
        self.torch = torch.random.get_rng_state()
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.cuda = torch.cuda.get_rng_state() if cuda else None
        self.streams = sys.stdout, sys.stderr
        self.files = os.dup(1), os.dup(2)
        plain = [each for each in logging.getLogger().handlers if type(each) is logging.StreamHandler]
        self.handlers = [(handler, handler.stream) for handler in plain]

    def restore(self) -> None:
        """Give the process back what it had when this was made; once only."""
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

        The calling thread waits, so that the handler of a signal runs in it at once. What a function raises is raised
        here, after the others have ended.
        """
        errors: list[BaseException] = []
        before = ProcessState()
        self._gates = {number: threading.Semaphore(0) for number in range(len(functions))}
        threads = [
            threading.Thread(target=self._thread, args=(number, function, ProcessState(), errors))
            for number, function in enumerate(functions)
        ]
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
        return next((each for each in self._gates if each > number), next(iter(self._gates)))

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
