"""The status of a run: a small JSON file that is replaced atomically."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from blockyard.address_space import is_used_up, remedy
from blockyard.atomic_files import read_json, write_json
from blockyard.errors import printable
from blockyard.runs.lock import held, holder
from blockyard.runs.rank_notes import read_notes
from blockyard.runs.redact import redact_text

State = Literal["queued", "running", "done", "failed", "interrupted"]
STATES: tuple[str, ...] = get_args(State)
FILE = "status.json"
_TEXT, _NUMBER = (str, type(None)), (int, type(None))
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("reason", "started", "ended", "updated"), _TEXT),
    **dict.fromkeys(("step", "exit_code"), _NUMBER),
    "facts": dict,
}
_MAX_REASON = 400  # characters of the text of an error


@dataclass(frozen=True)
class Status:
    """A run's state and its reason.

    state: queued, running, done, failed or interrupted
    reason: one sentence; always present for `failed` and `interrupted`
    step: optimizer steps done at that time, or None
    exit_code: of the process, once it has ended
    started, ended, updated: UTC times, ISO 8601
    facts: further entries of the engine
    """

    state: State
    reason: str | None = None
    step: int | None = None
    exit_code: int | None = None
    started: str | None = None
    ended: str | None = None
    updated: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Return whether the run is done."""
        return self.state == "done"

    def __str__(self) -> str:
        text: str = self.state
        if self.step is not None:
            text += f" at step {self.step}"
        if self.reason:
            text += f": {self.reason}"
        return text


def now() -> str:
    """Return the current UTC time to the millisecond, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_status(folder: Path, *, alive: bool | None = None) -> Status:
    """Read the status; `running` without a live process becomes `interrupted`.

    alive: whether its process lives, if the caller knows; None looks at the lock
    """
    try:
        raw = read_json(folder / FILE)
        status = Status(**{key: value for key, value in raw.items() if key in Status.__dataclass_fields__})
        if status.state not in STATES:
            raise ValueError(f"unknown state {status.state!r:.40}")
        for name, kind in _KINDS.items():
            if not isinstance(getattr(status, name), kind):
                raise ValueError(f"{name}={getattr(status, name)!r:.40}")
    except FileNotFoundError:
        status = Status("queued")
    except (ValueError, TypeError, AttributeError) as error:
        return Status("interrupted", f"{FILE} is damaged ({error})")
    except OSError as error:
        return Status("interrupted", f"{FILE} cannot be read ({error.strerror or error})")
    if status.state != "running":
        return status
    if alive is None:
        alive = held(folder)
    if alive:
        return status
    # The kernel has released the lock of a killed process, which could not write that it ended.
    holder_note = holder(folder)
    process = "its process"
    if holder_note and "pid" in holder_note:
        process = f"process {holder_note['pid']}"
    reason = f"killed: {process} ended without reporting"
    for note in read_notes(folder)[:1]:
        reason += f"; {note}"
    return replace(status, state="interrupted", reason=reason, exit_code=None, ended=None)


def write_status(folder: Path, status: Status) -> None:
    """Replace the status file. Raises OSError."""
    write_json(folder / FILE, asdict(status))


def diverged(state: str, reason: str | None) -> bool:
    """Return whether a run has failed because its loss, a gradient or a weight was not finite (`faults.nan_guard`)."""
    return state == "failed" and (reason or "").startswith("NotFiniteError")


def reason_of(error: BaseException) -> str:
    """Return the type of an error and the first line of its text, without secrets, with control characters escaped.

    Of an error in a worker process of a loader it is the last line, with the error there. The text of an
    error may be anything: an error with a `__str__` that raises is named by its type.
    """
    used_up = False
    try:
        text = str(error)
        used_up = is_used_up(error)
    except BaseException as problem:  # whatever a component raises where its error is described
        text = f"its text cannot be printed ({type(problem).__name__})"
    lines = text.strip().splitlines()
    if "Original Traceback" in text:  # torch's, of an error in a worker process
        lines.reverse()
    line = next((line for line in lines if line.strip()), "")
    line = printable(redact_text(line.strip()))[:_MAX_REASON]
    if not line:
        line = "out of memory" if used_up else "no message"
    if used_up:
        line += remedy()
    name = printable(type(error).__name__)
    if line.startswith(f"{name}: "):
        return line
    return f"{name}: {line}"
