"""A signal at a chosen point of a command: before or after the n-th call of a function, in whichever process.

The command is forked from a warm process, so its fork server and workers are too, and all of them carry
the patched function. The first process that reaches the point strikes; no other one does.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STOPPED = 0.4  # seconds between SIGSTOP and SIGCONT
_PLANNER, _SERVER = "BATTERY_PLANNER", "BATTERY_SERVER"


@dataclass(frozen=True)
class Strike:
    """What is sent, to whom, and when.

    point: "module:Class.function"; "os:replace=NAME" is the renaming of a file of that name
    call: of the point, counted in each process
    target: planner, server, or self (the process that reaches the point)
    """

    point: str
    signum: int
    when: str = "before"
    call: int = 1
    target: str = "self"

    def __str__(self) -> str:
        place = self.point.rpartition(":")[2].rpartition(".")[2] if "=" not in self.point else self.point[3:]
        return f"{signal.Signals(self.signum).name[3:]}-{self.target}-{self.when}-{place}-{self.call}"


def note(role: str) -> None:
    """Record this process as the planner or the server, for strikes from its children and itself."""
    os.environ[{"planner": _PLANNER, "server": _SERVER}[role]] = str(os.getpid())


def arm(strike: Strike, marker: Path) -> None:
    """Patch the point of a strike. marker: a file that says that it has struck; it must not exist."""
    module_name, _, name = strike.point.partition(":")
    name, _, wanted = name.partition("=")
    owner: Any = importlib.import_module(module_name)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    raw = owner.__dict__[last]
    original = getattr(owner, last)
    count = 0

    @functools.wraps(original)
    def struck(*arguments: Any, **keywords: Any) -> Any:
        nonlocal count
        if not wanted or Path(arguments[1]).name == wanted:
            count += 1
            if count == strike.call and not marker.exists():
                if strike.when == "before":
                    deliver(strike, marker)
                    return original(*arguments, **keywords)
                result = original(*arguments, **keywords)
                deliver(strike, marker)
                return result
        return original(*arguments, **keywords)

    setattr(owner, last, staticmethod(struck) if isinstance(raw, staticmethod | classmethod) else struck)


def deliver(strike: Strike, marker: Path) -> None:
    """Send the signal, once in all."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    variable = {"planner": _PLANNER, "server": _SERVER}.get(strike.target)
    pid = os.getpid() if variable is None else int(os.environ[variable])
    if strike.signum == signal.SIGSTOP:
        _continue_later(pid)
    os.kill(pid, strike.signum)
    if pid != os.getpid():
        time.sleep(0.1)  # so that it strikes at this point


def _continue_later(pid: int) -> None:
    if os.fork() == 0:
        time.sleep(_STOPPED)
        os.kill(pid, signal.SIGCONT)
        os._exit(0)


def both(points: list[str], signals: list[int], **options: Any) -> list[Strike]:
    """Strikes before and after each point with each signal."""
    return [
        Strike(point, number, when, **options) for point in points for when in ("before", "after") for number in signals
    ]
