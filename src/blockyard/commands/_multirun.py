"""`train -m`: each combination of values is a run of its own, one after the other.

    this process ---- socket ---- a server that has imported everything ---- fork ---- blockyard train ...

Each run is forked from the server of `blockyard sweep`, so that it starts without importing anything, and is otherwise
the command `blockyard train` in a process of its own: it composes its config, begins with the random state and torch
settings of a new process, and one that dies, even by a signal, ends no other.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from blockyard.errors import UserError, refuse

if TYPE_CHECKING:
    from blockyard.commands.train import TrainArgs
    from blockyard.sweep.execution.runner import StopSignals
    from blockyard.sweep.executor._server_process import ServerProcess

log = logging.getLogger("blockyard")

MODULES = (  # what `blockyard train` imports besides what every cell of a sweep needs
    "blockyard.commands.train",
    "blockyard.commands.check",
    "blockyard.config.check",
    "blockyard.config.compose",
    "hydra.core.override_parser.overrides_parser",
)
_LOST = 143  # exit code of a run whose server died: the kernel has sent it SIGTERM
_PATIENCE = 10.0  # seconds that a run has to end after a second signal


def run(args: TrainArgs) -> int:
    """Run every combination and print the exit code of each; 0 only if all of them succeeded."""
    from blockyard.commands.train import problems_of
    from blockyard.config.overrides import expand
    from blockyard.sweep.execution.runner import StopSignals
    from blockyard.sweep.executor._server_process import ServerProcess

    flag = next((flag for flag in args.hydra_flags() if flag in ("--cfg", "--info")), None)
    if flag is not None:
        raise UserError(f"{flag} shows one config; leave out -m")
    dirs = [text for name in args.config_dirs for text in ("--config-dir", name)]
    codes: list[tuple[int, list[str]]] = []
    server = ServerProcess(None, MODULES)
    with StopSignals() as signals:
        try:
            folders = args.folders()
            if problems := problems_of(args, multirun=True):
                return refuse(problems)
            combinations = expand(args.overrides, folders)
            server.start()  # no process before the overrides are known to be right, and few enough
            for number, overrides in enumerate(combinations):
                code = _train(server, number, [*overrides, *dirs], signals)
                codes.append((code, list(overrides)))
                if signals.signum is not None:
                    break
        finally:
            server.close(idle=True)
    for code, overrides in codes:
        sys.stdout.write(f"exit {code}  {' '.join(overrides)}\n")
    if command := comparison([overrides for code, overrides in codes if code == 0]):
        sys.stdout.write(f"{command} shows them side by side\n")
    return signals.code or max((code for code, _ in codes), default=0)


def comparison(runs: Sequence[Sequence[str]]) -> str | None:
    """Returns the command that compares runs by the key in which they differ; None for fewer than two.

    runs: the overrides of each that ended well. Those that differ in their seed alone are one arm.
    """
    pairs = [dict(override.partition("=")[::2] for override in overrides) for overrides in runs]
    keys = {key for each in pairs for key in each if len({other.get(key) for other in pairs}) > 1} - {"seed"}
    if not keys:
        return None
    folder = pairs[0].get("outputs", "outputs")
    by = f" --by {next(iter(keys))}" if len(keys) == 1 else ""
    return f"blockyard compare {shlex.quote(folder)}{by}" if "outputs" not in keys else None


def train(arguments: Sequence[str]) -> int:
    """Be the process of `blockyard train ARGUMENTS` to its end, and return its exit code."""
    import runpy
    import threading
    import traceback

    sys.argv = ["blockyard", "train", *arguments]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = 1
    try:
        runpy.run_module("blockyard", run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as Python ends a process
        traceback.print_exc()
    threading._shutdown()  # waits for threads, as Python does at its end
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


def _train(server: ServerProcess, number: int, arguments: Sequence[str], signals: StopSignals) -> int:
    """The exit code of one combination. A SIGTERM is passed on; Ctrl-C reaches it by itself."""
    from blockyard.sweep.executor._fork_messages import CellEnded, Request
    from blockyard.sweep.executor._server_process import ServerLost

    sys.stdout.flush()
    passed_on = False
    try:
        server.send(Request(number, command=partial(train, tuple(arguments))))
        while True:
            for news in server.receive(0.2):
                if isinstance(news, CellEnded):
                    return news.code if news.code >= 0 else 128 - news.code
            if signals.signum == signal.SIGTERM and not passed_on:
                server.send(Request(number, signum=signal.SIGTERM))
                passed_on = True
    except ServerLost:
        log.warning("the process that starts the runs of -m was killed; the run was told to save and stop")
        server.close(idle=False)
        return _LOST
    except KeyboardInterrupt:  # a second signal
        _end(server, number)
        raise


def _end(server: ServerProcess, number: int) -> None:
    """Tell a run to end now, and kill it if it does not."""
    from blockyard.sweep.executor._fork_messages import CellEnded, Request
    from blockyard.sweep.executor._server_process import ServerLost

    with contextlib.suppress(ServerLost):
        for signum in (signal.SIGTERM, signal.SIGKILL):
            server.send(Request(number, signum=signum))
            until = time.monotonic() + _PATIENCE
            while time.monotonic() < until:
                if any(isinstance(news, CellEnded) for news in server.receive(0.2)):
                    return
