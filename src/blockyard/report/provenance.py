"""Where the figures come from."""

from __future__ import annotations

from collections import Counter
from typing import Any

from blockyard.report.load.groups import Gathered
from blockyard.runs.status import now


def provenance(found: Gathered) -> dict[str, Any]:
    """Time, code, versions, machine, command, data, what the planner decided, what memory means.

    Of runs that differ, what most of them have.
    """
    facts = [run.facts for run in found.records if run.facts]
    git = _most([fact.get("git") for fact in facts])
    data = [run.data for run in found.records if run.data.get("fingerprint")]
    memories = [run.summary.get("peak_memory") for run in found.records]
    host = _most([fact.get("host") for fact in facts])
    return {
        "time": now(),
        "code": git,
        "versions": _most([fact.get("versions") for fact in facts]),
        "host": host,
        "command": found.facts.get("command") or _most([fact.get("command") for fact in facts]),
        "data": _most(data),
        "notes": list(found.notes),
        "memory": _most([memory.get("kind") for memory in memories if isinstance(memory, dict)]),
    }


def _most(values: list[Any]) -> Any:
    known = [value for value in values if value]
    if not known:
        return None
    place = Counter(map(repr, known)).most_common(1)[0][0]
    return next(value for value in known if repr(value) == place)
