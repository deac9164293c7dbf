"""How a run stands: one small JSON file, replaced whole at each change."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from blockyard.atomic_files import read_json, write_json
from blockyard.runs.lock import held, holder

State = Literal["queued", "running", "done", "failed", "interrupted"]
STATES: tuple[str, ...] = get_args(State)
FILE = "status.json"


@dataclass(frozen=True)
class Status:
    """A run's state, and why.

    state: queued, running, done, failed or interrupted
    reason: one sentence for people; for `failed` and `interrupted` always there
    step: updates done when it was written, or None
    exit_code: of the process, where it has ended
    started, ended, updated: UTC times, ISO 8601
    facts: whatever else the engine wants to leave
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
        """Whether the run is done: nothing is left to do."""
        return self.state == "done"

    def __str__(self) -> str:
        at = f" at step {self.step}" if self.step is not None else ""
        return f"{self.state}{at}" + (f": {self.reason}" if self.reason else "")


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_status(folder: Path, *, alive: bool | None = None) -> Status:
    """The status on the disk, corrected by the lock: `running` without a live process was killed.

    alive says whether its process lives where the caller knows; None asks the lock.
    """
    try:
        raw = read_json(folder / FILE)
        known = {key: value for key, value in raw.items() if key in Status.__dataclass_fields__}
        status = Status(**known)
        if status.state not in STATES:
            raise ValueError(f"unknown state {status.state!r}")
    except FileNotFoundError:
        status = Status("queued")
    except (ValueError, TypeError, AttributeError) as error:
        return Status("interrupted", f"{FILE} is damaged ({error})")
    if status.state == "running" and not (held(folder) if alive is None else alive):
        note = holder(folder)
        who = f"process {note['pid']}" if note and "pid" in note else "its process"
        return Status(
            "interrupted",
            f"killed: {who} is gone without a word",
            status.step,
            None,
            status.started,
            None,
            status.updated,
            status.facts,
        )
    return status


def write_status(folder: Path, status: Status) -> None:
    """Replace the status. Raises OSError."""
    write_json(folder / FILE, asdict(status))
