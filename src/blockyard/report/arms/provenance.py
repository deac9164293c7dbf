"""Where the results of a comparison come from: code, versions, machine, command, data."""

from __future__ import annotations

from collections import Counter
from typing import Any

from blockyard.report.load.arms import ComparisonInput
from blockyard.report.load.document import ProvenanceRow
from blockyard.runs.status import now


def provenance(data: ComparisonInput) -> ProvenanceRow:
    """Return time, code, versions, host, command, data, the planner's notes and what peak memory measures.

    Where runs differ, the most common value.
    """
    facts = [run.facts for run in data.records if run.facts]
    memory = [run.summary.get("peak_memory") for run in data.records]
    return ProvenanceRow(
        time=now(),
        code=_most_common([record.get("git") for record in facts]),
        versions=_most_common([record.get("versions") for record in facts]),
        host=_most_common([record.get("host") for record in facts]),
        command=data.facts.get("command") or _most_common([record.get("command") for record in facts]),
        data=_most_common([run.data for run in data.records if run.data.get("fingerprint")]),
        notes=list(data.notes),
        memory=_most_common([peak.get("kind") for peak in memory if isinstance(peak, dict)]),
    )


def _most_common(values: list[Any]) -> Any:
    present = [value for value in values if value]
    if not present:
        return None
    # By their text, as dicts cannot be counted.
    text = Counter(map(repr, present)).most_common(1)[0][0]
    return next(value for value in present if repr(value) == text)
