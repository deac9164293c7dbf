"""Decouples a run from its loggers: the run continues whatever they do.

Loggers that show histograms of gradients get them at the steps that are logged. `wandb.watch(model,
log="gradients")` counts in hooks of the backward pass; here the gradients are read after the step: no hook runs in it,
and a step that is not logged costs nothing.
"""

from __future__ import annotations

import _thread
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from blockyard.config.tree import Node
from blockyard.engine.callbacks.base import RunCallback, RunState
from blockyard.engine.faults.own_generators import own_generators
from blockyard.engine.loggers.base import Histograms, RunLogger, presented, recorded_metrics
from blockyard.engine.loggers.configured import run_loggers
from blockyard.errors import UserError
from blockyard.runs.folder import RunFolder
from blockyard.runs.status import reason_of

if TYPE_CHECKING:
    from blockyard.config.build import Components
    from blockyard.contracts import Split
    from blockyard.runs.predictions_file import SamplePredictions

log = logging.getLogger("blockyard")

_FINISH_SECONDS = 12.0
_START_SECONDS = 2.0  # that a logger waits for the first row
_THREAD_SECONDS = 30.0  # that a thread may take to start
_ABANDON_SECONDS = 3.0
_GRACE_SECONDS = 1.0  # for a logger that was abandoned
_WAITING = 10_000  # rows queued for a logger that is slow to start
BINS = 64  # of a histogram of gradients
_Call = Callable[[RunLogger], None]
# package -> the logger of which no failure has been told yet; empty once one has. A writer that fails in a thread of
# its own often fails in the logger's thread at the same moment.
_WATCHED: dict[str, str] = {}
_TURN = threading.Lock()


class RunLog:
    """Writes metrics.csv in this thread, and feeds each logger in another. For the main process.

    finish_seconds: the longest that the end of a run waits for all loggers together
    """

    def __init__(self, folder: RunFolder, *loggers: RunLogger | None, finish_seconds: float = _FINISH_SECONDS) -> None:
        self.folder = folder
        self.finish_seconds = finish_seconds
        self._feeds = [Feed(folder, logger) for logger in loggers if logger is not None]
        self._finished = False
        for feed in self._feeds:
            with own_generators():
                feed.logger.ready()

    def start(self) -> None:
        """Save the loggers' ids, then start their threads."""
        for feed in self._feeds:
            feed.start(presented(self.folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step in metrics.csv and with the loggers."""
        plain = {name: float(value) for name, value in values.items() if value is not None}
        self.folder.metrics.append(step, plain)
        for feed in self._feeds:
            feed.log(step, plain)

    def callbacks(self) -> dict[str, RunCallback]:
        """Return the callbacks that look at the steps for a logger, by name; empty if no logger asks for them."""
        watching = [feed for feed in self._feeds if feed.logger.watches_gradients]
        if not watching:
            return {}

        def send(step: int, histograms: Histograms) -> None:
            for feed in watching:
                feed.call(lambda logger: logger.gradients(step, histograms))

        return {"_gradients": GradientHistograms(send)}

    def show(self, components: Components, split: Split, kept: SamplePredictions) -> None:
        """Give the loggers that ask for them the first test samples. An error is a warning, and the run goes on."""
        count = max((feed.logger.test_samples for feed in self._feeds), default=0)
        if not count:
            return
        from blockyard.engine.loggers.shown_samples import shown_samples

        try:
            with own_generators():
                shown = shown_samples(components, split, kept, count)
        except Exception as error:  # a split of somebody's own, or one whose data has moved since
            log.warning("the test samples are not shown by loggers: %s", reason_of(error))
            return
        for feed in self._feeds:
            if feed.logger.test_samples:
                feed.call(lambda logger: logger.samples(shown[: logger.test_samples]))

    def finish(self, state: str, summary: Mapping[str, Any] | None = None) -> None:
        """Close the record; returns within `finish_seconds`, the record's or a logger's. A second call does nothing."""
        if self._finished:
            return
        self._finished = True
        started = time.monotonic()
        for feed in self._feeds:
            feed.end(state, summary or {})
        for feed in self._feeds:
            limit = max(self.finish_seconds, feed.logger.finish_seconds)
            feed.join(max(started + limit - time.monotonic(), 0.0), limit)
        self.folder.metrics.close()


def replay(folder: RunFolder) -> None:
    """Send metrics.csv and the summary to the loggers of the run's config. Raises the errors of a logger."""
    for logger in run_loggers(folder.config):
        logger.ready()
        with folder.lock():
            logger.prepare(folder)
        try:
            logger.start(folder, presented(folder))
            for step, values in recorded_metrics(folder):
                logger.log(step, values)
            logger.finish(folder.status.state, folder.summary())
        except BaseException:
            logger.abandon()
            raise


class Feed:
    """Passes the metrics of a run on to a logger."""

    def __init__(self, folder: RunFolder, logger: RunLogger) -> None:
        self.folder = folder
        self.logger = logger
        self._calls: queue.Queue[_Call] = queue.Queue(maxsize=_WAITING)
        self._end: tuple[str, dict[str, Any]] | None = None
        self._awake = threading.Event()  # there is a row, or the end
        self._ended = threading.Event()
        self._thread: LoggerThread | None = None
        self._dropped = 0

    def start(self, config: Node) -> None:
        """Save the logger's ids, then start its thread."""
        logger, folder = self.logger, self.folder
        if not self._guard("prepare", lambda: logger.prepare(folder)):
            return
        if logger.package is not None:
            _watch_threads(logger.package, self._name)
        thread = LoggerThread(lambda: self._serve(config))
        if self._guard("start a thread", thread.start):
            self._thread = thread

    def log(self, step: int, values: dict[str, float]) -> None:
        """Queue the metrics of a step."""
        self.call(lambda logger: logger.log(step, values))

    def call(self, call: _Call) -> None:
        """Queue a call of the logger."""
        if self._thread is None or not self._thread.is_alive():
            return
        try:
            self._calls.put_nowait(call)
            self._awake.set()
        except queue.Full:
            if not self._dropped:
                log.warning("%s is too slow and loses metrics; metrics.csv has all of them", self._name)
            self._dropped += 1

    def end(self, state: str, summary: Mapping[str, Any]) -> None:
        """Tell the logger how the run ended, without waiting for it."""
        self._end = (state, dict(summary))
        self._ended.set()
        self._awake.set()

    def join(self, seconds: float, stated: float) -> None:
        """Wait for the logger at most `seconds`, and leave it behind then. stated: the seconds that a message names."""
        if self._thread is None:
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            log.warning("%s did not finish within %.0f s and is abandoned", self._name, stated)
            # In a thread too: what a logger does there may hang as well.
            abandon = threading.Thread(target=self._guard, args=("abandon", self.logger.abandon), daemon=True)
            abandon.start()
            abandon.join(_ABANDON_SECONDS)
            # Whatever it waited for has ended: it logs its last messages now rather than while Python shuts down.
            self._thread.join(_GRACE_SECONDS)

    @property
    def _name(self) -> str:
        return f"logger {self.logger.label}"

    def _serve(self, config: Node) -> None:
        logger = self.logger
        # Importing a logger's package takes seconds of a core, which the first step needs more.
        self._awake.wait(_START_SECONDS)
        alive = self._guard("start", lambda: logger.start(self.folder, config))
        while alive:
            call = self._next()
            if call is None:
                break
            alive = self._guard("log", lambda call=call: call(logger))
        if alive and self._end is not None:
            state, summary = self._end
            alive = self._guard("finish", lambda: logger.finish(state, summary))
        if not alive:
            self._guard("abandon", logger.abandon)

    def _next(self) -> _Call | None:
        while True:
            try:
                return self._calls.get(timeout=0.1)
            except queue.Empty:
                if self._ended.is_set():
                    return None

    def _guard(self, what: str, call: Any) -> bool:
        started = time.monotonic()
        try:
            with own_generators():
                call()
        except BaseException as error:  # whatever a logger raises, the run continues
            plain = isinstance(error, Exception | SystemExit) and not isinstance(error, UserError)
            if not plain and threading.current_thread() is threading.main_thread():
                raise  # for the user, or a signal of theirs
            package = self.logger.package
            if what != "abandon" and _take_turn(package or "") != "":
                reason, seconds = reason_of(error), time.monotonic() - started
                log.warning("%s failed to %s (%s, after %.1f s); the run continues", self._name, what, reason, seconds)
            return False
        return True


def _take_turn(package: str) -> str | None:
    """The watched logger of a package if its failure is the first, empty if it is not, None if it is not watched."""
    with _TURN:
        name = _WATCHED.get(package)
        if name is not None:
            _WATCHED[package] = ""
        return name


def _watch_threads(package: str, name: str) -> None:
    """Say in one line that a thread of a logger's package failed, where Python would print a traceback."""
    if not _WATCHED:
        python = threading.excepthook
        threading.excepthook = lambda arguments: _thread_failed(arguments) or python(arguments)
    _WATCHED[package] = name


def _thread_failed(arguments: threading.ExceptHookArgs) -> bool:
    """Return whether the thread ran code of a watched package; its first failure is one warning."""
    frame = arguments.exc_traceback
    while frame is not None:
        package = str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0]
        if package in _WATCHED:
            if arguments.exc_value is not None and (name := _take_turn(package)):
                log.warning("a thread of %s failed (%s); the run continues", name, reason_of(arguments.exc_value))
            return True
        frame = frame.tb_next
    return False


class LoggerThread:
    """A daemon thread that calls `target`.

    `threading.Thread.start` waits for the first line of the new thread without a limit, and a thread that finds no
    memory ends before it: the run would wait forever (Python 3.11 to 3.14). This one raises MemoryError after 30 s.
    """

    def __init__(self, target: Callable[[], object]) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._started = threading.Event()
        self._ended = threading.Event()
        self._given_up = False

    def start(self, seconds: float = _THREAD_SECONDS) -> None:
        """Start, and wait until it runs. Raises RuntimeError or MemoryError where the system has no room for it."""
        _thread.start_new_thread(self._run, ())
        self._started.wait(seconds)
        with self._lock:
            self._given_up = not self._started.is_set()
        if self._given_up:
            raise MemoryError(f"a thread did not start within {seconds:.0f} s")

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._started.is_set() and not self._ended.is_set()

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for its end."""
        self._ended.wait(seconds)

    def _run(self) -> None:
        with self._lock:
            if self._given_up:
                return
            self._started.set()
        try:
            self._target()
        finally:
            self._ended.set()


class GradientHistograms(RunCallback):
    """Counts the gradients of each parameter, as the optimizer got them: summed over micro-batches and clipped."""

    incidental: ClassVar[frozenset[str]] = frozenset({"*"})

    def __init__(self, send: Callable[[int, Histograms], None]) -> None:
        self.send = send
        self._warned: set[str] = set()

    def on_log(self, state: RunState, values: dict[str, float]) -> None:
        """Count the gradients of the last step."""
        histograms: Histograms = {}
        for name, parameter in state.learner.model.named_parameters():
            gradient = parameter.grad
            if gradient is None:
                continue
            local = getattr(gradient, "to_local", None)  # under FSDP: the part of this process
            if local is not None:
                gradient = local()
            numbers = gradient.detach().double().cpu().numpy().ravel()
            try:
                histograms[name] = np.histogram(numbers[np.isfinite(numbers)], bins=BINS)
            except ValueError as error:  # numbers so close that no bins lie between them
                if name not in self._warned:
                    log.warning("no histogram of the gradients of %s at step %d: %s", name, state.step, error)
                self._warned.add(name)
        self.send(state.step, histograms)
