"""The result of a comparison as an object, and as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from blockyard.report.render.markdown import markdown


@dataclass(repr=False)
class Comparison:
    """The result of a comparison. `as_dict` returns it as JSON can hold it."""

    title: str
    claim: str | None
    source: str | None
    question: dict[str, Any] | None
    metric: str
    direction: str
    metrics: list[str]
    directions: dict[str, str]
    baseline: str | None
    answer: str
    tasks: list[str] = field(default_factory=list)  # of the selected runs; this comparison is about one
    stale: str | None = None  # of a file that is older than a later start of its sweep: since when
    margin: float | None = None  # the smallest difference that matters, where one was set
    expect: dict[str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    baselines: list[dict[str, Any]] = field(default_factory=list)  # simple ones; `baseline` is an arm
    seeds: list[int] = field(default_factory=list)
    arms: list[dict[str, Any]] = field(default_factory=list)
    effects: dict[str, Any] | None = None
    cells: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    attention: list[dict[str, Any]] = field(default_factory=list)
    predictions: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[str, Any] | None = None
    written: dict[str, Any] | None = None
    cost_axis: str = "flops"
    provenance: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, list[float]] = field(default_factory=dict)  # of metrics that are shares, where intervals end

    def __repr__(self) -> str:
        arms = ", ".join(str(arm["name"]) for arm in self.arms)
        return f"<comparison {self.title} by {self.metric} ({arms}): {self.answer}>"

    def as_dict(self) -> dict[str, Any]:
        """Return a copy as plain JSON; NaN and infinity become None."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}

    def arm(self, name: str) -> dict[str, Any]:
        """Return the row of an arm. Raises KeyError."""
        for row in self.arms:
            if row["name"] == name:
                return row
        raise KeyError(name)

    def _repr_markdown_(self) -> str:
        """Return the table, for a notebook."""
        return markdown(self.as_dict())


def plain(value: Any) -> Any:
    """Return a copy that JSON can hold: None for NaN and infinity, lists for tuples, text for keys and paths."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
