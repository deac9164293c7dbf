"""A cell in a process that the fork server has forked."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import signal
import sys

from blockyard.config import package_finder
from blockyard.sweep.execution.cell import execute
from blockyard.sweep.executor._fork_messages import Request

_PR_SET_PDEATHSIG = 1


def set_threads(count: int) -> None:
    """Set the number of CPU threads of this process and of those it starts."""
    import torch

    os.environ["OMP_NUM_THREADS"] = str(count)
    torch.set_num_threads(count)  # torch read the variable when it was imported


def run_cell(request: Request, write: int, server: int) -> int:
    """In the child: run the cell, send its outcome and return its exit code."""
    if request.command is None:
        os.setpgid(0, 0)  # a group of its own, so that a kill takes the processes that the cell started
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != server:
            return 143
    os.environ.update(request.environment or {})
    package_finder.install(package_finder.described())
    if request.threads is not None:
        set_threads(request.threads)
    if request.command is not None:
        code = request.command()
    else:
        outcome = execute(request.task)
        code = outcome.code
        with contextlib.suppress(OSError):
            os.write(write, pickle.dumps(outcome))
    with contextlib.suppress(Exception):  # an exit handler of the run must not change its exit code
        atexit._run_exitfuncs()
    return code
