"""Where the results come from: code, versions, machine, command, data."""

from __future__ import annotations

from collections import Counter
from typing import Any

from blockyard.report.load.arms import ComparisonInput
from blockyard.runs.status import now


def provenance(data: ComparisonInput) -> dict[str, Any]:
    """Return time, code, versions, host, command, data, the planner's notes and what peak memory measures.

    Where runs differ, the most common value.
    """
    facts = [run.facts for run in data.records if run.facts]
    memory = [run.summary.get("peak_memory") for run in data.records]
    return {
        "time": now(),
        "code": _most_common([each.get("git") for each in facts]),
        "versions": _most_common([each.get("versions") for each in facts]),
        "host": _most_common([each.get("host") for each in facts]),
        "command": data.facts.get("command") or _most_common([each.get("command") for each in facts]),
        "data": _most_common([run.data for run in data.records if run.data.get("fingerprint")]),
        "notes": list(data.notes),
        "memory": _most_common([each.get("kind") for each in memory if isinstance(each, dict)]),
    }


def _most_common(values: list[Any]) -> Any:
    present = [value for value in values if value]
    if not present:
        return None
    text = Counter(map(repr, present)).most_common(1)[0][0]
    return next(value for value in present if repr(value) == text)
