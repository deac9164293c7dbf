"""How an attempt at training a run ended: state, exit code and reason, from the error that ended it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import Any

from blockyard.engine.faults.interrupts import Interrupted, Paused
from blockyard.engine.faults.peers import PeerFailedError, PeerLostError
from blockyard.errors import printable
from blockyard.runs.redact import redact_text
from blockyard.runs.status import State, reason_of


class UnfinishedError(RuntimeError):
    """Training ended before its last step without a reason."""


@dataclass
class Ending:
    """The record of an attempt's end. trace: for error.txt."""

    state: State
    code: int
    reason: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    trace: str | None = None


def ending_of(error: BaseException, step: int) -> Ending:
    """Return the ending of an attempt that an error ended after `step` steps.

    Only a signal or a callback interrupts a run. Everything else that a component may raise is a failure: SystemExit
    and KeyboardInterrupt too, since Ctrl-C arrives as `Interrupted`.
    """
    if isinstance(error, Paused):
        return Ending("interrupted", error.exit_code, str(error))
    if isinstance(error, Interrupted):
        return Ending("interrupted", error.exit_code, f"{error} at step {step}")
    if isinstance(error, PeerFailedError | PeerLostError | UnfinishedError):
        reason = printable(str(error))  # a sentence already
    else:
        reason = reason_of(cause_of(error))
    if f"step {step}" not in reason and "at step" not in reason:
        reason += f" (after step {step})"
    return Ending("failed", 1, reason, trace=_trace(error))


def cause_of(error: BaseException) -> BaseException:
    """Return the error that a component raised: Lightning replaces KeyboardInterrupt by SystemExit."""
    context = error.__context__
    if isinstance(error, SystemExit) and isinstance(context, KeyboardInterrupt):
        return context
    return error


def _trace(error: BaseException) -> str:
    try:
        return redact_text("".join(traceback.format_exception(error)))
    except BaseException as problem:  # an error of a component may fail even at being shown
        return f"{type(error).__name__}, which cannot be shown: {type(problem).__name__}\n"
