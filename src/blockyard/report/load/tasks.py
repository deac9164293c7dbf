"""Tell runs of different tasks apart: a verdict is about one data set and one objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from blockyard.report.load.run_record import RunRecord

_KEYS = ("data", "objective")


@dataclass
class Task:
    """Runs of one data set and one objective. name: `data=digits objective=classify`"""

    name: str
    records: list[RunRecord] = field(default_factory=list)

    def __str__(self) -> str:
        count = len(self.records)
        return f"{self.name} ({count} run{'s' if count != 1 else ''})"


def by_task(records: Sequence[RunRecord], by: str | None = None) -> list[Task]:
    """Return the tasks of the runs, the one with the most runs first.

    Data is the same where its fingerprint is. A run that has recorded none, because it has not read its data yet, goes
    with the others of its choice of data.
    by: a config key whose values are the arms; where it is one of the data or the objective, runs that differ there
        are compared on purpose, and so they are one task
    """
    family = (by or "").partition(".")[0]
    keys = [_key(record, without=family) for record in records]
    recorded = {key[:2]: key for key in keys if key[2] is not None}
    groups: dict[tuple[str, str, str | None], Task] = {}
    for record, key in zip(records, keys, strict=True):
        key = recorded.get(key[:2], key) if key[2] is None else key
        groups.setdefault(key, Task(_name(key, keys))).records.append(record)
    return sorted(groups.values(), key=lambda task: -len(task.records))


def _key(record: RunRecord, *, without: str) -> tuple[str, str, str | None]:
    """The choices of data and objective, and the fingerprint of the data if there is one."""
    recorded = record.facts.get("choices")
    choices = recorded if isinstance(recorded, dict) else {}
    data, objective = ("any" if name == without else str(choices.get(name) or "unknown") for name in _KEYS)
    fingerprint = record.data.get("fingerprint")
    return data, objective, str(fingerprint) if fingerprint and without != "data" else None


def _name(key: tuple[str, str, str | None], keys: Sequence[tuple[str, str, str | None]]) -> str:
    """The choices, and the beginning of the fingerprint where that alone tells the data apart."""
    data, objective, fingerprint = key
    alike = {other[2] for other in keys if other[:2] == key[:2] and other[2] is not None}
    mark = f" fingerprint {fingerprint[:8]}" if fingerprint and len(alike) > 1 else ""
    return f"data={data} objective={objective}{mark}"
