"""The ledger of a campaign: events in a file of JSON lines, to which lines are only ever appended.

Each line has the SHA-256 of the line before it, so that a line which was changed or taken out is noticed. A line is
written in one call and synced before the lock is released. A process that is killed while it writes leaves a beginning
of a line: readers leave it out, and the next append takes it away.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Le

from blockyard.atomic_files import link_reason, sync_folder
from blockyard.campaign.judgement import Verdict
from blockyard.errors import UserError
from blockyard.runs.lock import exclusive

FILE = "ledger.jsonl"
LOCK = ".ledger.lock"
Direction = Literal["min", "max"]
BySeed = dict[int, float]
ErrorRate = Annotated[float, Gt(0), Le(0.5)]
Tries = Annotated[int, Ge(1), Le(10_000)]
Pairs = Annotated[int, Ge(2), Le(1_000)]
Positive = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class Settings:
    """The rules of a campaign, which no later event changes.

    base: overrides of the first baseline
    metric: on validation; direction: the better one
    error: the expected share of false keeps among all keeps, at most
    tries: the number of judgements
    first, most: pairs of runs of a proposal at the first look, and at the last one
    measure: fresh seeds of a baseline's measurement
    fresh: whether each proposal has seeds of its own
    hours: of all runs that the ledger names; slower, larger: the largest ratio to the base of the time of a step, and
        of the parameters; None for no limit
    """

    base: list[str]
    metric: str
    direction: Direction
    error: ErrorRate
    tries: Tries
    first: Pairs
    most: Pairs
    measure: Pairs
    fresh: bool
    hours: Positive | None = None
    slower: Positive | None = None
    larger: Positive | None = None

    def check(self) -> None:
        """Raise UserError with every value that no campaign can have."""
        from pydantic import TypeAdapter, ValidationError

        problems = []
        try:
            TypeAdapter(Settings).validate_python(asdict(self))
        except ValidationError as error:
            problems = [f"{issue['loc'][0]}={issue['input']}: {issue['msg']}" for issue in error.errors()]
        if self.first > self.most:
            problems.append(f"first={self.first} most={self.most}: the first look comes after the last one")
        if problems:
            raise UserError("\n  - ".join(problems))


@dataclass(frozen=True)
class RunsBySeed:
    """The runs of one arm, by seed: their folders below the outputs, and their values of the metric."""

    folders: dict[int, str]
    values: BySeed


@dataclass(frozen=True)
class Created:
    """The first event."""

    settings: Settings
    event: Literal["created"] = "created"
    time: str = ""


@dataclass(frozen=True)
class Begun:
    """A proposal whose runs may start. baseline: the number of keeps before; seeds: as many as it may take"""

    proposal: str
    overrides: list[str]
    baseline: int
    seeds: list[int]
    event: Literal["begun"] = "begun"
    time: str = ""


@dataclass(frozen=True)
class Judged:
    """A verdict on a proposal.

    number: of the judgement, from 1
    alpha: the level of its turn
    log_e: of the gains; 0 where a run has failed
    seeds: of the pairs, in the order in which they were looked at
    before: the runs of the baseline; after: those of the proposal
    seconds: of the runs that no earlier event names
    """

    proposal: str
    overrides: list[str]
    baseline: int
    number: int
    alpha: float
    log_e: float
    verdict: Verdict
    reason: str
    seeds: list[int]
    before: RunsBySeed
    after: RunsBySeed
    seconds: float
    event: Literal["judged"] = "judged"
    time: str = ""


@dataclass(frozen=True)
class Measured:
    """A measurement of a baseline, beside the base of the campaign, on seeds that no proposal uses.

    costs: mean step_seconds and parameters of the runs of the base, as far as they are known
    """

    baseline: int
    base: RunsBySeed
    now: RunsBySeed
    costs: dict[str, float]
    seconds: float
    event: Literal["measured"] = "measured"
    time: str = ""


@dataclass(frozen=True)
class Looked:
    """A look at the test split. It is written before the test metrics are read."""

    event: Literal["looked"] = "looked"
    time: str = ""


@dataclass(frozen=True)
class Closed:
    """The end of a campaign: the test metric of the base and of the last baseline, by seed."""

    metric: str
    base: BySeed
    end: BySeed
    event: Literal["closed"] = "closed"
    time: str = ""


Event = Created | Begun | Judged | Measured | Looked | Closed
E = TypeVar("E", Created, Begun, Judged, Measured, Looked, Closed)


@dataclass
class Ledger:
    """The events in a campaign's folder."""

    folder: Path
    _torn: int = field(default=0, repr=False)  # bytes after the last whole line

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / FILE

    def exists(self) -> bool:
        """Return whether there is a first event. A process that was killed may have left the beginning of one."""
        return self.path.exists() and b"\n" in self.path.read_bytes()

    def read(self) -> list[Event]:
        """Return all events. Raises UserError where the ledger is missing or damaged."""
        return self._events()[0]

    @contextlib.contextmanager
    def locked(self) -> Iterator[list[Event]]:
        """Hold the ledger's lock, by which one process at a time reads and appends. Yields all events."""
        with exclusive(self.folder, LOCK):
            yield self.read()

    def create(self, settings: Settings) -> None:
        """Write the first event. Raises UserError where the folder has a ledger."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with exclusive(self.folder, LOCK):
            if self.exists():
                raise UserError(f"{self.folder} is a campaign already; choose another name, or `campaign show` it")
            self._append(Created(settings), "", 0)
        sync_folder(self.folder)

    def append(self, event: E) -> E:
        """Append an event, and return it with its time. The caller holds the lock."""
        _, last, size = self._events()
        return self._append(event, last, size)

    def _append(self, event: E, previous: str, size: int) -> E:
        event = replace(event, time=datetime.now(UTC).isoformat(timespec="seconds"))
        record = {**asdict(event), "previous": previous}
        line = json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n"
        if reason := link_reason(self.path):
            raise UserError(f"cannot write {self.path}: {reason}; remove it")
        try:
            with self.path.open("r+b" if self.path.exists() else "wb") as file:
                file.truncate(size)  # the beginning of a line that a killed process left
                file.seek(size)
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror or error}") from error
        return event

    def _events(self) -> tuple[list[Event], str, int]:
        """Return all events, the hash of the last line, and the bytes of all whole lines."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            raise UserError(
                f"{self.folder} is not a campaign: it has no {FILE}; `blockyard campaign new {self.folder.name} ...` "
                "starts one"
            ) from None
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror or error}") from error
        whole, _, torn = content.rpartition(b"\n")
        if torn and len(torn) != self._torn:
            self._torn = len(torn)
            sys.stderr.write(
                f"{self.path}: left out {len(torn)} bytes of a last line that was not written to its end\n"
            )
        events: list[Event] = []
        previous = ""
        lines = whole.split(b"\n") if whole else []
        for number, line in enumerate(lines, start=1):
            events.append(self._parsed(line, number, previous))
            previous = hashlib.sha256(line).hexdigest()
        if not events or not isinstance(events[0], Created):
            raise UserError(f"{self.path} is damaged: its first line does not create a campaign")
        return events, previous, len(whole) + 1

    def _parsed(self, line: bytes, number: int, previous: str) -> Event:
        from pydantic import ValidationError

        try:
            record: Any = json.loads(line)
            expected = record.pop("previous")
            event: Event = _reader().validate_python(record)
        except (ValueError, KeyError, AttributeError, TypeError, ValidationError) as error:
            raise UserError(f"{self.path} is damaged: line {number} is not an event of a campaign") from error
        if expected != previous:
            raise UserError(
                f"{self.path} is damaged: the line before line {number} was changed or is missing, or line {number} was"
            )
        return event


@lru_cache
def _reader() -> Any:
    """Return the validator of an event's record."""
    from pydantic import Field, TypeAdapter

    kind = Annotated[Event, Field(discriminator="event")]
    return TypeAdapter(kind)


def run_folders(events: list[Event]) -> set[str]:
    """Return the folders of all runs that events name."""
    folders: set[str] = set()
    for event in events:
        for runs in runs_of(event).values():
            folders.update(runs.folders.values())
    return folders


def runs_of(event: Event) -> Mapping[str, RunsBySeed]:
    """Return the runs that an event names, by their role."""
    if isinstance(event, Judged):
        return {"before": event.before, "after": event.after}
    if isinstance(event, Measured):
        return {"base": event.base, "now": event.now}
    return {}
