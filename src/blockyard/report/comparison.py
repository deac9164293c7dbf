"""Compare the arms of a sweep, or any runs. Every table, page and notebook shows the result of `compare`.

comparison = blockyard.compare("outputs/sweeps/norm_placement")
print(comparison.answer)
comparison.as_dict()
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from blockyard.errors import UserError
from blockyard.report.arms import attention_maps, fairness
from blockyard.report.arms.answer import answer
from blockyard.report.arms.fairness import missing_result, provenance, review
from blockyard.report.arms.rows import arm_rows, cell_row, curves
from blockyard.report.arms.simple_baselines import better_baseline, simple_baselines
from blockyard.report.arms.size_ladder import ladder_answer, ladder_row, rivals
from blockyard.report.arms.written_texts import written_texts
from blockyard.report.load.arms import ComparisonInput
from blockyard.report.load.costs import AXES, default_axis, median_costs
from blockyard.report.load.document import (
    ArmRow,
    BaselineRow,
    CellRow,
    ClauseRow,
    ComparisonDocument,
    CurveRow,
    EffectsRow,
    EvidenceRow,
    ExpectRow,
    ExternalRow,
    LadderRow,
    MapRow,
    PictureRow,
    ProvenanceRow,
    SampleTables,
    SettingRow,
    WrittenTable,
)
from blockyard.report.load.metrics import choose_metric, direction_of, directions, metric_names
from blockyard.report.load.resolve import Selection, load_selection
from blockyard.report.render.markdown import markdown
from blockyard.report.samples.build import samples
from blockyard.report.samples.scores import arm_scores, gaps
from blockyard.report.stats import effects, sequential
from blockyard.report.stats.crossed import crossed_difference
from blockyard.report.stats.expectations import ExpectedOutcome, evaluate
from blockyard.report.stats.external import external_rows
from blockyard.report.stats.intervals import Mean, mean_of
from blockyard.report.stats.metric_range import Range, metric_range
from blockyard.report.stats.paired import Difference, Values, finite
from blockyard.report.stats.resplit import difference_of_sums, inflation, split_mean
from blockyard.report.stats.verdict import ArmResult, Differ, compare_arms
from blockyard.sweep.cells import ARM_LEVEL
from blockyard.sweep.spec.keys import OVERS, Floors, Ladder
from blockyard.sweep.spec.ladder import FACTOR, expected_floors, floors_of
from blockyard.sweep.spec.threshold import of_metric
from blockyard.sweep.stopping.decisions import comparisons

# The result of a comparison as an object, and as plain data.


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
    expect: ExpectRow | None = None
    ladder: LadderRow | None = None
    evidence: EvidenceRow | None = None  # of a sweep that stops when it is decided
    warnings: list[str] = field(default_factory=list)
    baselines: list[BaselineRow] = field(default_factory=list)  # simple ones; `baseline` is an arm
    better_baseline: str | None = None  # a sentence, where every arm is worse than one of these
    external: list[ExternalRow] = field(default_factory=list)  # figures from papers and other tools
    seeds: list[int] = field(default_factory=list)
    arms: list[ArmRow] = field(default_factory=list)
    effects: EffectsRow | None = None
    cells: list[CellRow] = field(default_factory=list)
    curves: list[CurveRow] = field(default_factory=list)
    tuning: list[SettingRow] = field(default_factory=list)
    tuned_by: str | None = None  # the metric on validation that chose among these settings
    attention: list[MapRow] = field(default_factory=list)
    predictions: list[PictureRow] = field(default_factory=list)
    samples: SampleTables | None = None
    written: WrittenTable | None = None
    cost_axis: str = "flops"
    provenance: ProvenanceRow = field(default_factory=ProvenanceRow)
    ranges: dict[str, list[float]] = field(default_factory=dict)  # of metrics that are shares, where intervals end

    def __repr__(self) -> str:
        arms = ", ".join(str(arm["name"]) for arm in self.arms)
        answer = f"{self.answer} {self.better_baseline}" if self.better_baseline else self.answer
        return f"<comparison {self.title} by {self.metric} ({arms}): {answer}>"

    def as_dict(self) -> ComparisonDocument:
        """Return a copy as plain JSON; NaN and infinity become None."""
        document: ComparisonDocument = plain({each.name: getattr(self, each.name) for each in fields(self)})
        return document

    def arm(self, name: str) -> ArmRow:
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


def compare(
    selection: Selection,
    *,
    baseline: str | None = None,
    metric: str | None = None,
    by: str | None = None,
    direction: str | None = None,
    margin: float | None = None,
    cost_axis: str | None = None,
    outputs: str | os.PathLike[str] = "outputs",
    changes: bool = True,
    task: int = 0,
    over: str | None = None,
    ladder: str | None = None,
    floors: str | None = None,
) -> Comparison:
    """Compare the arms of a sweep, or any runs, with a baseline, paired by seed.

    selection: a plan, or paths, names and ids: of a sweep, of runs, of a folder of many runs; or runs as `train` and
        `runs` return them
    baseline: an arm's name; default the sweep's, else the arm with the most finished runs
    metric: default the sweep's, else the objective's on test; a cost is possible too (step_seconds)
    by: a config key whose values are the arms; direction: max or min, where the metric does not tell
    margin: the smallest difference that matters, in the metric's unit; default the sweep's
    cost_axis: the cost that quality is weighed against: flops, parameters, step_seconds, ...; default flops, or
        parameters or the cache where the arms differ in these by more than 5 % and in FLOPs by less
    changes: whether to compute what each arm changes in config and model, and the tables of single test samples,
        whose pictures and texts are read from the data again; takes a few seconds

    over: for what verdicts hold: seeds, samples (these models on new test samples) or both; default the sweep's, else
        seeds. Samples need the predictions that runs keep
    ladder: the factor of a grid whose levels are sizes: laws of loss against compute, and what each arm is worth in
        it; default the rungs of a sweep with `ladder`, whose arms are each compared with the baseline at their rung
    floors: whether those laws have one E for all arms (shared) or one each (own); default the sweep's, else shared
    task: which of the tasks (data and objective) of runs that no sweep put together; they are in `tasks`, the one
        with the most runs first. Runs of different tasks are never compared

    Raises UserError for what does not exist, and where two arms built the same model.
    """
    if cost_axis is not None and cost_axis not in AXES:
        raise UserError(f"cost_axis={cost_axis}: expected one of {', '.join(AXES)}")
    if direction not in (None, "min", "max"):
        raise UserError(f"direction={direction}: expected max or min")
    data = load_selection(selection, outputs=outputs, by=by, task=task)
    terms = _terms(data, metric, direction, baseline, margin)
    resplit = (data.question or {}).get("resplit")
    if resplit and (over or ladder is not None):
        option = "ladder" if over is None else f"over={over}"
        raise UserError(f"{option}: each seed of this sweep has a split of its own; its verdicts are over splits")
    over = over or (data.question or {}).get("over")
    if over not in (None, *OVERS):
        raise UserError(f"over={over}: expected one of {', '.join(OVERS)}")
    ratio = _split_ratio(data) if resplit else None
    differ = _differ(data, terms, over) if ratio is None else _over_splits(data, terms.metric, ratio)
    result = _result(data, terms, cost_axis, changes, differ, ratio)
    climbed = (data.question or {}).get("ladder")
    of_laws = _floors(floors, climbed, ladder)
    if ladder is not None:
        result.ladder = ladder_row(data, terms.metric, terms.direction, terms.baseline, ladder, of_laws)
    elif climbed:
        try:
            result.ladder = ladder_row(data, terms.metric, terms.direction, terms.baseline, FACTOR, of_laws)
        except UserError as error:  # the rest of the comparison holds without a law
            result.warnings.append(str(error))
    if result.ladder is not None:
        result.answer = " ".join(filter(None, [result.answer, ladder_answer(result.ladder)]))
    return result


def _floors(floors: str | None, climbed: Ladder | None, ladder: str | None) -> Floors:
    """Return whether the laws of the arms share an E. Raises UserError for another word, or where there are no laws."""
    if floors is None:
        return floors_of(climbed or {})
    if ladder is None and not climbed:
        raise UserError(f"floors={floors}: no laws are fitted here; it goes with ladder=FACTOR or a key `ladder`")
    return expected_floors(floors)


def _split_ratio(data: ComparisonInput) -> float:
    """Return the most test samples over training samples of a finished run; 0 where none has finished."""
    sizes = [(run.data.get("test"), run.data.get("train")) for arm in data.arms for run in arm.done]
    return max((test / train for test, train in sizes if test and train), default=0.0)


def _over_splits(data: ComparisonInput, metric: str, ratio: float) -> Differ:
    """Return what compares sums of arms where each seed has a split of its own."""
    values = {arm.name: arm.values(metric) for arm in data.arms}
    return partial(difference_of_sums, values, ratio)


def _differ(data: ComparisonInput, terms: _Terms, over: str | None) -> Differ | None:
    """Return what compares sums of arms over test samples; None over seeds, the default. Raises UserError."""
    if over is None or over == "seeds":
        return None
    if data.standing is not None:
        raise UserError(f"over={over}: a sweep that stops when it is decided is judged over seeds")
    if averaged := [arm.name for arm in data.arms if arm.averages is not None]:
        raise UserError(
            f"over={over}: {averaged[0]} has several runs on each seed, which are averaged; choose a key with "
            "`by` that leaves one"
        )
    if of_metric(terms.metric):
        raise UserError(f"over={over}: {terms.metric} is an outcome of whole runs, which are judged over seeds")
    scores = {arm.name: arm_scores(arm.runs, terms.metric) for arm in data.arms}
    of_texts = any(own.documents for by_seed in scores.values() for own in by_seed.values())
    held = f"{over} documents" if of_texts else over

    def differ(first: tuple[str, ...], second: tuple[str, ...]) -> Difference:
        pairs = [(scores[a], scores[b]) for a, b in zip(first, second, strict=True)]
        common = set.intersection(*(set(by_seed) for pair in pairs for by_seed in pair))
        parts = [gaps(*({seed: by_seed[seed] for seed in common} for by_seed in pair)) for pair in pairs]
        return replace(crossed_difference(sum(parts[1:], parts[0]), over), over=held)

    return differ


@dataclass
class _Terms:
    """What is compared with what, and by which rule. directions: of every metric that a run has recorded."""

    metric: str
    direction: str
    directions: dict[str, str]
    baseline: str | None
    margin: float | None
    expected: str | None
    warnings: list[str]


def _terms(
    data: ComparisonInput, metric: str | None, direction: str | None, baseline: str | None, margin: float | None
) -> _Terms:
    """Return the terms, where arguments are None from the sweep or the runs. Raises UserError."""
    metric = choose_metric(metric, data)
    recorded = directions(data.records)
    own = data.direction if metric == data.metric else None
    direction = recorded[metric] = direction_of(metric, recorded, direction or recorded.get(metric) or own)
    baseline = _baseline(baseline, data)
    question = data.question or {}
    own_margin = margin or (question.get("margin") if metric == data.metric else None)
    expected, warnings = question.get("expect"), fairness.warnings(data, metric, own_margin)
    # The expectation and the margin of a sweep refer to its own metric.
    if metric == data.metric:
        margin = margin or question.get("margin")
    elif expected:
        warnings.append(f"the expectation ({expected}) is not evaluated: it refers to {data.metric}")
        expected = None
    return _Terms(metric, direction, recorded, baseline, margin, expected, warnings)


def _result(
    data: ComparisonInput,
    terms: _Terms,
    cost_axis: str | None,
    changes: bool,
    differ: Differ | None,
    ratio: float | None,
) -> Comparison:
    """Return the comparison by these terms. ratio: test over training samples, where each seed has its own split"""
    cost_axis = cost_axis or default_axis(median_costs(run.cost for run in arm.done) for arm in data.arms)
    metric, direction, baseline = terms.metric, terms.direction, terms.baseline
    question = data.question or {}
    values = {arm.name: arm.values(metric) for arm in data.arms}
    against = rivals(data, baseline)
    by_looks = _sequential_terms(data, terms, values)
    averaged = mean_of if ratio is None else partial(split_mean, ratio=ratio)
    results = (
        sequential.compare_arms(values, baseline, by_looks)
        if by_looks
        else _fixed_results(values, terms, against, differ, averaged)
    )
    reasons = ((arm.name, missing_result(arm, metric, data.records)) for arm in data.arms)
    missing = {name: reason for name, reason in reasons if reason is not None}
    phrases = {name: reason.phrase for name, reason in missing.items()}
    expect = _expect(terms.expected, values, terms, phrases, by_looks, differ) if terms.expected else None
    evidence = _evidence(data, terms, values, by_looks) if by_looks else None
    rows = arm_rows(
        data,
        results,
        missing,
        baseline=baseline,
        metric=metric,
        direction=direction,
        cost=AXES[cost_axis],
        with_changes=changes,
        rivals=against,
        averaged=averaged,
    )
    simple = simple_baselines(data.arms, metric)
    names = metric_names(data.records)
    factors = _effects(data, values, results, baseline, ratio)
    lines = curves(data.records, {row["name"]: row["cost"]["flops_per_sample"] for row in rows})
    terms.warnings.extend(review(lines, factors, metric, direction, terms.directions))
    base = data.arm(str(baseline))
    own = answer(rows, baseline, metric, expect, factors, base.levels[ARM_LEVEL] if base and against else None)
    sentences = [own, evidence["words"] if evidence else None]
    return Comparison(
        title=data.title,
        claim=question.get("claim"),
        source=question.get("source"),
        question=data.question,
        metric=metric,
        direction=direction,
        metrics=names,
        directions={name: terms.directions[name] for name in {*names, *terms.directions} if name in terms.directions},
        baseline=baseline,
        answer=" ".join(filter(None, sentences)),
        tasks=data.tasks,
        margin=terms.margin,
        expect=expect,
        evidence=evidence,
        warnings=terms.warnings,
        baselines=simple,
        better_baseline=better_baseline(rows, simple, metric, direction),
        external=_external(data, terms, values),
        seeds=sorted({run.seed for arm in data.arms for run in arm.runs}),
        arms=rows,
        effects=factors,
        cells=[cell_row(record) for record in data.records],
        curves=lines,
        tuning=data.tuning,
        tuned_by=(data.facts.get("metric") or {}).get("validation") if data.tuning else None,
        attention=attention_maps.maps(data.records),
        predictions=attention_maps.pictures(data.records),
        samples=samples([run for arm in data.arms for run in arm.runs]) if changes else None,
        written=written_texts([run for arm in data.arms for run in arm.runs]) if changes else None,
        ranges=_ranges(data, names),
        cost_axis=cost_axis,
        provenance=provenance(data),
    )


def _sequential_terms(data: ComparisonInput, terms: _Terms, values: Values) -> sequential.Terms | None:
    """Return the terms of a sweep that stops when it is decided; None for a fixed number of seeds."""
    if data.standing is None:
        return None
    reached = of_metric(terms.metric)
    seeds = (data.question or {}).get("seeds") or ()
    outcome = reached.kind if reached else None
    return sequential.Terms(terms.direction, terms.margin, seeds, _limits(terms.metric, values), outcome)


def _fixed_results(
    values: Values,
    terms: _Terms,
    against: dict[str, str],
    differ: Differ | None,
    averaged: Callable[[Sequence[float]], Mean],
) -> dict[str, ArmResult]:
    """Return the result of each arm after a fixed number of seeds."""
    reached = of_metric(terms.metric)
    return compare_arms(
        values,
        terms.baseline,
        terms.direction,
        margin=terms.margin,
        limits=_limits(terms.metric, values),
        outcome=reached.kind if reached else None,
        differ=differ,
        averaged=averaged,
        rivals=against,
    )


def _limits(metric: str, values: Values) -> Range | None:
    return metric_range(metric, (value for by_seed in values.values() for value in by_seed.values()))


def _ranges(data: ComparisonInput, names: list[str]) -> dict[str, list[float]]:
    """Return the range of each metric that has one: where the intervals of its mean end."""
    ranges = {
        name: metric_range(name, (run.metrics[name] for run in data.records if name in run.metrics)) for name in names
    }
    return {name: list(limits) for name, limits in ranges.items() if limits is not None}


def _baseline(requested: str | None, data: ComparisonInput) -> str | None:
    """Return the name of the baseline: the requested one (a unique part of its name will do) or the sweep's."""
    names = [arm.name for arm in data.arms]
    name = requested or data.baseline
    if name is not None and name not in names:
        matches = [each for each in names if name in each]
        if len(matches) == 1:
            return matches[0]
        raise UserError(f"baseline={name}: no such arm; there are {', '.join(names)}")
    if name is None and len(names) > 1:
        # The arm with the most runs allows the most paired comparisons.
        name = max(data.arms, key=lambda arm: len(arm.done)).name
        data.warnings.append(f"no baseline was given; {name} is used (--baseline ARM selects another)")
    return name


def _expect(
    text: str,
    values: Values,
    terms: _Terms,
    missing: dict[str, str],
    by_looks: sequential.Terms | None,
    differ: Differ | None,
) -> ExpectRow:
    try:
        if by_looks:
            return sequential.evaluate(text, values, by_looks, missing).as_dict()
        signs = of_metric(terms.metric) is not None
        return evaluate(
            text, values, terms.direction, margin=terms.margin, missing=missing, signs=signs, differ=differ
        ).as_dict()
    except UserError as error:  # reported when the sweep file is read; the results of a frozen plan remain valid
        reason = str(error).removeprefix("expect: ")
        return ExpectedOutcome(text, "undecided", [ClauseRow(text=text, verdict="undecided", reason=reason)]).as_dict()


def _evidence(data: ComparisonInput, terms: _Terms, values: Values, by_looks: sequential.Terms) -> EvidenceRow | None:
    """Return the evidence on what the sweep decides, and add to the warnings where it is to be read with care."""
    assert data.standing is not None
    try:
        clauses = comparisons(terms.expected, list(values), terms.baseline)
    except UserError:  # see `_expect`
        return None
    judged = sequential.judged(clauses, values, by_looks)
    if by_looks.outcome is None:
        terms.warnings.extend(sequential.warnings(judged, values, by_looks.limits))
    return sequential.evidence_row(data.standing, judged, data.question or {})


def _external(data: ComparisonInput, terms: _Terms, values: Values) -> list[ExternalRow]:
    """Return the figures of the sweep file, which are of its own metric, beside the arms."""
    figures = (data.question or {}).get("external") or {}
    if not figures or terms.metric != data.metric:
        return []
    fixed = data.standing is None and not (data.question or {}).get("resplit")
    return external_rows(figures, values, terms.direction, tested=fixed)


def _effects(
    data: ComparisonInput,
    values: Values,
    results: dict[str, ArmResult],
    baseline: str | None,
    ratio: float | None,
) -> EffectsRow | None:
    levels = {arm.name: arm.levels for arm in data.arms if arm.levels}
    if (data.question or {}).get("ladder"):
        return None  # whose levels are sizes, between which the laws say more than a mean over them
    if data.kind == "one_at_a_time":
        return effects.single_factor_effects(results, levels, baseline) if baseline else None
    if data.kind in ("grid", "inferred") and len(levels) == len(data.arms) and effects.is_grid(levels):
        seeds = max((len(finite(by_seed)) for by_seed in values.values()), default=0)
        return effects.grid_effects(values, levels, 1.0 if ratio is None else inflation(seeds, ratio))
    return None
