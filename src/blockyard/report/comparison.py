"""The answer to a question, as plain data: what every table, page and notebook is made from.

comparison = blockyard.compare("outputs/sweeps/norm_placement")
print(comparison.answer)
comparison.as_dict()
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields
from typing import Any

from blockyard.errors import UserError
from blockyard.report import attention_maps, curves, fairness, provenance
from blockyard.report import tables as arm_rows
from blockyard.report.answer import answer
from blockyard.report.cost_table import AXES, KEYS
from blockyard.report.load.gather import Selection, gather
from blockyard.report.load.groups import Gathered
from blockyard.report.load.metric_direction import default_metric, direction_of, directions
from blockyard.report.missing_arms import SAID, absent
from blockyard.report.render.markdown import markdown
from blockyard.report.stats import effects, expectations, statistics


@dataclass
class Comparison:
    """Every figure of a comparison. `as_dict` gives it as JSON can hold it."""

    title: str
    claim: str | None
    source: str | None
    question: dict[str, Any] | None
    metric: str
    direction: str
    metrics: list[str]
    directions: dict[str, str]
    baseline: str | None
    answer: str = ""
    stale: str | None = None  # of a file that is older than a later start of its sweep: since when
    margin: float | None = None  # the smallest difference that matters, where one was said
    expect: dict[str, str] | None = None
    warnings: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    arms: list[dict[str, Any]] = field(default_factory=list)
    effects: dict[str, Any] | None = None
    cells: list[dict[str, Any]] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    attention: list[dict[str, Any]] = field(default_factory=list)
    cost_axis: str = "flops"
    provenance: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """A copy as plain JSON: what is no number is null, never NaN."""
        return {one.name: plain(getattr(self, one.name)) for one in fields(self)}

    def arm(self, name: str) -> dict[str, Any]:
        """The row of an arm. Raises KeyError."""
        return next((row for row in self.arms if row["name"] == name), None) or _no_arm(name)

    def _repr_markdown_(self) -> str:
        """The table, for a notebook."""
        return markdown(self.as_dict())


def compare(
    asked: Selection,
    *,
    baseline: str | None = None,
    metric: str | None = None,
    by: str | None = None,
    direction: str | None = None,
    interesting: float | None = None,
    cost_axis: str = "flops",
    outputs: str | os.PathLike[str] = "outputs",
    changes: bool = True,
) -> Comparison:
    """Judge the arms of a sweep, or of any runs.

    asked: a plan, or paths, names and ids: of a sweep, of runs, of a folder of many runs
    baseline: an arm's name; default the sweep's, else the arm that was run first
    metric: default the sweep's, else the objective's on test; a cost may be asked too (step_seconds)
    by: a config key whose values are the arms; direction: max or min, where the metric does not say
    interesting: the smallest difference that matters, in the metric's unit
    cost_axis: what quality is weighed against: flops, parameters, step_seconds, ...
    changes: whether to work out what each arm changes in config and model; takes a few seconds

    Raises UserError for what is not there, and where two arms built the same model.
    """
    if cost_axis not in AXES:
        raise UserError(f"cost_axis={cost_axis}: takes one of {', '.join(AXES)}")
    if direction not in (None, "min", "max"):
        raise UserError(f"direction={direction}: takes max or min")
    found = gather(asked, outputs=outputs, by=by)
    ways = directions(found.records)
    metrics = _metrics(found)
    metric = _metric(metric or found.metric, metrics, found)
    own = found.direction if metric == found.metric else None
    way = direction_of(metric, ways, direction or ways.get(metric) or own)
    ways[metric] = way
    base = _baseline(baseline, found)
    values = {group.name: group.values(metric) for group in found.groups}
    question = found.question or {}
    # What a question expects, and its margin, is about its own metric.
    expected, warnings = question.get("expect"), fairness.warnings(found, metric)
    if metric != found.metric:
        warnings += [f"not judged here, because it is said of {found.metric}: expect ({expected})"] if expected else []
        expected = None
    elif interesting is None:
        interesting = question.get("margin")
    judged = statistics.judge(values, base, way, interesting=interesting)
    rows = arm_rows.rows(found, judged, base, metric, metrics, way, AXES[cost_axis], told=changes)
    lacking = {group.name: absent(group, metric, found.records) for group in found.groups}
    gone = {arm: SAID[why.verdict][0] for arm, why in lacking.items() if why is not None}
    made = Comparison(
        title=found.title,
        claim=question.get("claim"),
        source=question.get("source"),
        question=found.question,
        metric=metric,
        direction=way,
        metrics=metrics,
        directions={name: ways[name] for name in {*metrics, *ways} if name in ways},
        baseline=base,
        margin=interesting,
        expect=_expected(expected, values, way, interesting, gone),
        warnings=warnings,
        seeds=sorted({run.seed for group in found.groups for run in group.runs}),
        arms=rows,
        effects=_effects(found, values, judged, base),
        cells=[arm_rows.cell(record) for record in found.records],
        curves=curves.curves(found.records, {group.name: arm_rows.flops(group) for group in found.groups}),
        tuning=found.tuning,
        attention=attention_maps.maps(found.records),
        cost_axis=cost_axis,
        provenance=provenance.provenance(found),
    )
    made.answer = answer(made)
    return made


def _expected(
    text: str | None, values: statistics.Values, direction: str, interesting: float | None, lacking: dict[str, str]
) -> dict[str, str] | None:
    if not text:
        return None
    try:
        return expectations.judge(text, values, direction, interesting=interesting, lacking=lacking).as_dict()
    except UserError as error:  # a sweep's file says so before; the figures of a frozen plan stand all the same
        return expectations.Judgement(text, "undecided", str(error).removeprefix("expect: ")).as_dict()


def plain(value: Any) -> Any:
    """A copy that JSON can hold: null for NaN and infinity, lists for tuples, text for keys and paths."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _metrics(found: Gathered) -> list[str]:
    names = dict.fromkeys(name for run in found.records for name in run.metrics)
    return sorted(names, key=lambda name: (not name.startswith("test/"), name))


def _metric(asked: str | None, metrics: list[str], found: Gathered) -> str:
    if asked is None:
        asked = default_metric(found.records)
    if asked is None:
        done = sum(run.done for run in found.records)
        if done or not found.question:
            raise UserError(f"none of the {len(found.records)} runs has a metric yet; {done} are done")
        return "test/loss"  # a sweep that has just begun: there is nothing to show yet
    costs = [key for key in KEYS if any(key in run.cost for run in found.records)]
    if metrics and asked not in (*metrics, *costs):
        twins = [name for name in (f"test/{asked}", f"val/{asked}") if name in metrics]
        if twins:
            return twins[0]
        raise UserError(f"metric={asked}: no run has it; there are {', '.join([*metrics, *costs])}")
    return asked


def _baseline(asked: str | None, found: Gathered) -> str | None:
    names = [group.name for group in found.groups]
    wanted = asked or found.baseline
    if wanted is not None and wanted not in names:
        near = [name for name in names if wanted in name]
        if len(near) == 1:
            return near[0]
        raise UserError(f"baseline={wanted}: there is no such arm; there are {', '.join(names)}")
    if wanted is None and len(names) > 1:
        # The one with the most runs allows the most comparisons; of equals the first.
        first = max(found.groups, key=lambda group: len(group.done)).name
        found.warnings.append(f"no baseline was named: it is {first}; --baseline ARM takes another")
        return first
    return wanted


def _effects(
    found: Gathered, values: statistics.Values, judged: dict[str, statistics.Judged], base: str | None
) -> dict[str, Any] | None:
    levels = {group.name: group.levels for group in found.groups if group.levels}
    if found.kind == "one_at_a_time":
        return effects.simple(judged, levels, base) if base else None
    if found.kind in ("grid", "found") and len(levels) == len(found.groups) and effects.is_grid(levels):
        return effects.of_grid(values, levels)
    return None


def _no_arm(name: str) -> dict[str, Any]:
    raise KeyError(name)
