"""Compare the arms of a sweep, or any runs. Every table, page and notebook shows the result of `compare`.

comparison = blockyard.compare("outputs/sweeps/norm_placement")
print(comparison.answer)
comparison.as_dict()
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from blockyard.errors import UserError
from blockyard.report.arms import attention_maps, fairness
from blockyard.report.arms.answer import answer, tuned_sentence
from blockyard.report.arms.importance import importance_answer, importance_rows
from blockyard.report.arms.missing import missing_result
from blockyard.report.arms.pictures import pictures
from blockyard.report.arms.provenance import provenance
from blockyard.report.arms.repeats import quiet_sentence, repeats
from blockyard.report.arms.review import review
from blockyard.report.arms.rows import arm_rows, cell_row, curves
from blockyard.report.arms.savings import savings, savings_answer
from blockyard.report.arms.simple_baselines import better_baseline, simple_baselines
from blockyard.report.arms.size_ladder import decision_rows, decisions_answer, ladder_answer, ladder_row, rivals
from blockyard.report.arms.terms import ComparisonTerms
from blockyard.report.arms.written_texts import written_texts
from blockyard.report.confirmation import confirmation_sentence
from blockyard.report.load.arms import ComparisonInput
from blockyard.report.load.costs import AXES, default_axis, median_costs
from blockyard.report.load.document import (
    ArmRow,
    ClauseRow,
    ComparisonDocument,
    Difference,
    EffectsRow,
    EvidenceRow,
    ExpectRow,
    ExternalRow,
    LadderRow,
    plain,
)
from blockyard.report.load.metrics import choose_metric, direction_of, directions, metric_names, too_few_evaluations
from blockyard.report.load.resolve import Selection, load_selection
from blockyard.report.render import columns
from blockyard.report.samples.build import samples
from blockyard.report.samples.scores import arm_scores, effective_size, gaps
from blockyard.report.stats import effects, sequential
from blockyard.report.stats.crossed import crossed_difference
from blockyard.report.stats.expectations import evaluate, expected_outcome, of_one_family
from blockyard.report.stats.external import external_rows
from blockyard.report.stats.metric_range import Range, best_value, metric_range, metric_ranges
from blockyard.report.stats.paired import Values, finite
from blockyard.report.stats.resplit import difference_of_sums, inflation
from blockyard.report.stats.verdict import ArmResult, Differ, compare_arms
from blockyard.sweep.cells import ARM_LEVEL
from blockyard.sweep.plan.history import registration_sentence
from blockyard.sweep.spec.keys import OVERS, Floors, Ladder
from blockyard.sweep.spec.ladder import FACTOR, expected_floors, floors_of
from blockyard.sweep.spec.threshold import of_metric
from blockyard.sweep.stopping.decisions import comparisons
from blockyard.sweep.stopping.rule import StoppingRule
from blockyard.terminal import notebook_table


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(ComparisonDocument):
    """The result of a comparison. `as_dict` returns it as JSON can hold it."""

    def __repr__(self) -> str:
        arms = ", ".join(arm.name for arm in self.arms)
        sentences = f"{self.answer} {self.better_baseline}" if self.better_baseline else self.answer
        return f"<comparison {self.title} by {self.metric} ({arms}): {sentences}>"

    def as_dict(self) -> dict[str, Any]:
        """Return a copy as plain JSON; NaN and infinity become None."""
        document: dict[str, Any] = plain(self)
        return document

    def arm(self, name: str) -> ArmRow:
        """Return the row of an arm. Raises KeyError."""
        for row in self.arms:
            if row.name == name:
                return row
        raise KeyError(name)

    def _repr_html_(self) -> str:
        """Return the table of the arms and the answer, for a notebook."""
        better = "more" if self.direction == "max" else "less"
        header, rows = columns.quality(self)
        notes = [*columns.head_lines(self), self.answer, self.better_baseline]
        return notebook_table(f"{self.title}: {self.metric}, {better} is better", header, rows, notes)


def compare(
    selection: Selection,
    *,
    baseline: str | None = None,
    metric: str | None = None,
    by: str | Sequence[str] | None = None,
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
    by: a config key whose values are the arms, or several: "position,optimizer.lr" makes an arm of each combination
    direction: max or min, where the metric does not tell
    margin: the smallest difference that matters, in the metric's unit; default the sweep's
    cost_axis: the cost that quality is weighed against: flops, parameters, step_seconds, ...; default flops, or
        parameters or the cache where the arms differ in these by more than 5 % and in FLOPs by less
    changes: whether to compute what each arm changes in config and model, and the tables of single test samples,
        whose pictures and texts are read from the data again; takes a few seconds

    over: the population of verdicts: seeds, samples (these models on new test samples) or both; default the sweep's,
        else seeds. Samples need the predictions that runs keep
    ladder: the factor of a grid with sizes as its levels: adds laws of loss against compute, and the worth of each arm
        in compute; default the rungs of a sweep with `ladder`, where an arm is compared with the baseline at its rung
    floors: whether those laws have one E for all arms (shared) or one each (own); default the sweep's, else shared
    task: the index in `tasks` of a task (data and objective), for runs that no sweep put together. The task with the
        most runs is the first. Runs of different tasks are never compared

    Raises UserError for what does not exist, and where two arms built the same model.
    """
    if cost_axis is not None and cost_axis not in AXES:
        raise UserError(f"cost_axis={cost_axis}: expected one of {', '.join(AXES)}")
    if direction not in (None, "min", "max"):
        raise UserError(f"direction={direction}: expected max or min")
    data = load_selection(selection, outputs=outputs, by=by, task=task, metric=metric)
    question = data.question or {}
    metric = choose_metric(metric, data)
    is_own = metric == data.metric  # the direction, the margin and the expectation of a sweep are of its own metric
    recorded = directions(data.records)
    own_direction = data.direction if is_own else None
    direction = direction_of(metric, recorded, direction or recorded.get(metric) or own_direction)
    baseline, remarks = _baseline(baseline, data)
    data = replace(data, warnings=[*data.warnings, *remarks])
    if question.get("resplit") and (over or ladder is not None):
        option = "ladder" if over is None else f"over={over}"
        raise UserError(f"{option}: each seed of this sweep has a split of its own; its verdicts are over splits")
    over = over or question.get("over")
    if over not in (None, *OVERS):
        raise UserError(f"over={over}: expected one of {', '.join(OVERS)}")
    ratio = None
    if question.get("resplit"):
        ratio = _split_ratio(data)
        values = {arm.name: arm.values(metric) for arm in data.arms}
        differ: Differ | None = partial(difference_of_sums, values, ratio)
    else:
        differ = _over_samples(data, metric, over)
    # A margin and an expectation are in the unit of the sweep's own metric.
    if is_own:
        margin = margin or question.get("margin")
    terms = ComparisonTerms(
        metric=metric,
        direction=direction,
        directions={**recorded, metric: direction},
        baseline=baseline,
        rivals=rivals(data, baseline),
        margin=margin,
        expected=question.get("expect") if is_own else None,
        cost_axis=cost_axis or default_axis(median_costs(run.cost for run in arm.done) for arm in data.arms),
        changes=changes,
        differ=differ,
        split_ratio=ratio,
    )
    result = _compared(data, terms)
    row, problems = _ladder(data, terms, ladder, floors)
    sentences = [result.answer]
    if row:
        sentences.append(ladder_answer(row))
    decisions = None
    if ladder or question.get("ladder"):
        tested = [name for name in result.metrics if name.startswith("test/") and name != metric]
        decisions = decision_rows(data, [metric, *tested], ladder or FACTOR)
        sentences.append(decisions_answer(decisions, metric))
    return replace(
        result,
        ladder=row,
        decisions=decisions,
        answer=" ".join(filter(None, sentences)),
        warnings=[*result.warnings, *problems],
    )


def _compared(data: ComparisonInput, terms: ComparisonTerms) -> Comparison:
    """Return the comparison by these terms, without the laws of a ladder."""
    metric = terms.metric
    direction = terms.direction
    baseline = terms.baseline
    question = data.question or {}
    values = {arm.name: arm.outcomes(metric) for arm in data.arms}
    by_looks = _sequential_terms(data, terms, values)
    results = _results(terms, values, by_looks)
    missing = {}
    for arm in data.arms:
        reason = missing_result(arm, metric, data.records)
        if reason is not None:
            missing[arm.name] = reason
    expect = None
    if terms.expected:
        # An arm of which every run diverged has no value, but has lost against every run that ended.
        phrases = {name: reason.phrase for name, reason in missing.items() if not values[name]}
        expect = _expect(terms.expected, values, terms, phrases, by_looks)
        if all(clause.sign for clause in expect.clauses):  # else it could not be read, and asks nothing
            results = of_one_family(results, expect, {name: terms.rival(name) for name in results}, terms.margin)
    evidence, doubts = _evidence(data, terms, values, by_looks, expect)
    rows = arm_rows(data, terms, results, missing)
    factors = _effects(data, terms, values, results)
    lines = curves(data.records, {row.name: row.cost["flops_per_sample"] for row in rows})
    runs = [run for arm in data.arms for run in arm.runs]
    fixed_samples = terms.differ is None
    warnings = fairness.warnings(data, metric, terms.margin, fixed_samples=fixed_samples)
    if question.get("expect") and terms.expected is None:
        warnings.append(f"the expectation ({question['expect']}) is not evaluated: it refers to {data.metric}")
    warnings += too_few_evaluations(metric, runs)
    warnings += [*doubts, *review(lines, factors, metric, direction, terms.directions)]
    base = data.arm(str(baseline))
    rungs = None
    if base and terms.rivals:
        rungs = base.levels[ARM_LEVEL]
    sentences = [answer(rows, baseline, metric, expect, factors, rungs)]
    if evidence:
        sentences.append(evidence.words)
    sentences.append(tuned_sentence(rows, question))
    importance = importance_rows(data, {row.name: row.mean for row in rows})
    sentences.append(importance_answer(importance))
    if expect and fixed_samples and any(fairness.below_the_noise(data.arms, metric, terms.margin)):
        sentences.append("This holds for these test samples: the margin is below the noise of their choice.")
    saved = savings(data, terms, lines)
    sentences.append(savings_answer(saved, data))
    repeated = repeats(data.arms, metric)
    sentences += [quiet_sentence(row, metric) for row in repeated]
    sentences += _registration(data, expect)
    simple = simple_baselines(data.arms, metric)
    names = metric_names(data.records)
    runs = [run for arm in data.arms for run in arm.runs]
    return Comparison(
        title=data.title,
        claim=question.get("claim"),
        source=question.get("source"),
        question=data.question,
        metric=metric,
        direction=direction,
        metrics=names,
        directions=dict(terms.directions),
        baseline=baseline,
        answer=" ".join(filter(None, sentences)),
        tasks=data.tasks,
        margin=terms.margin,
        expect=expect,
        evidence=evidence,
        warnings=warnings,
        baselines=simple,
        better_baseline=better_baseline(rows, simple, metric, direction),
        external=_external(data, terms, values),
        seeds=sorted({run.seed for run in runs}),
        arms=rows,
        savings=saved,
        effects=factors,
        cells=[cell_row(record) for record in data.records],
        curves=lines,
        tuning=data.tuning,
        tuned_by=(data.facts.get("metric") or {}).get("validation") if data.tuning else None,
        attention=attention_maps.maps(data.records),
        predictions=pictures(data.records),
        samples=samples(runs) if terms.changes else None,
        written=written_texts(runs) if terms.changes else None,
        ranges=metric_ranges(names, [run.metrics for run in data.records]),
        repeats=repeated,
        importance=importance,
        cost_axis=terms.cost_axis,
        provenance=provenance(data),
    )


def _registration(data: ComparisonInput, expect: ExpectRow | None) -> list[str]:
    """Return sentences on what the answer confirms, and on whether the question stood before its runs."""
    seeds = sorted({run.seed for arm in data.arms for run in arm.runs})
    unfinished = any(run.state not in ("done", "failed", "refused") for run in data.records)
    started = [run for run in data.records if run.state not in ("missing", "refused")]
    return [
        confirmation_sentence(data.facts.get("confirms"), expect, seeds, unfinished=unfinished),
        registration_sentence(data.facts, [run.facts.get("time") for run in started]),
    ]


def _ladder(
    data: ComparisonInput, terms: ComparisonTerms, factor: str | None, floors: str | None
) -> tuple[LadderRow | None, list[str]]:
    """Return the laws of arms over sizes, or None, and the reasons why a sweep with the key `ladder` has none.

    factor: the requested factor with the sizes as its levels. Raises UserError where it has no laws.
    """
    climbed: Ladder | None = (data.question or {}).get("ladder")
    shared = _floors(floors, climbed, factor)
    if factor is not None:
        return ladder_row(data, terms.metric, terms.direction, terms.baseline, factor, shared), []
    if not climbed:
        return None, []
    try:
        return ladder_row(data, terms.metric, terms.direction, terms.baseline, FACTOR, shared), []
    except UserError as error:  # the rest of the comparison holds without a law
        return None, [str(error)]


def _floors(floors: str | None, climbed: Ladder | None, ladder: str | None) -> Floors:
    """Return whether the laws of the arms share an E. Raises UserError for another word, or where there are no laws."""
    if floors is None:
        return floors_of(climbed or {})
    if ladder is None and not climbed:
        raise UserError(f"floors={floors}: no laws are fitted here; it goes with ladder=FACTOR or a key `ladder`")
    return expected_floors(floors)


def _split_ratio(data: ComparisonInput) -> float:
    """Return the most test samples over training samples of a finished run; 0 where none has finished."""
    ratio = 0.0
    for arm in data.arms:
        for run in arm.done:
            test = run.data.get("test")
            train = run.data.get("train")
            if test and train:
                ratio = max(ratio, test / train)
    return ratio


def _over_samples(data: ComparisonInput, metric: str, over: str | None) -> Differ | None:
    """Return a function that compares sums of arms over test samples; None over seeds. Raises UserError."""
    if over is None or over == "seeds":
        return None
    if data.standing is not None:
        raise UserError(f"over={over}: a sweep that stops when it is decided is judged over seeds")
    averaged = [arm.name for arm in data.arms if arm.averages is not None]
    if averaged:
        raise UserError(
            f"over={over}: {averaged[0]} has several runs on each seed, which are averaged; choose a key with "
            "`by` that leaves one"
        )
    if of_metric(metric):
        raise UserError(f"over={over}: {metric} is an outcome of whole runs, which are judged over seeds")
    scores = {}
    population = over
    for arm in data.arms:
        scores[arm.name] = arm_scores(arm.runs, metric)
        if any(run.documents for run in scores[arm.name].values()):
            population = f"{over} documents"

    def differ(first: tuple[str, ...], second: tuple[str, ...]) -> Difference:
        # Of a contrast, a seed counts where all of its arms have it.
        common = set.intersection(*(set(scores[arm]) for arm in (*first, *second)))
        parts = []
        for a, b in zip(first, second, strict=True):
            left = {seed: scores[a][seed] for seed in common}
            right = {seed: scores[b][seed] for seed in common}
            parts.append(gaps(left, right))
        size = effective_size(scores[first[0]])
        return replace(crossed_difference(sum(parts[1:], parts[0]), over, size), over=population)

    return differ


def _sequential_terms(data: ComparisonInput, terms: ComparisonTerms, values: Values) -> sequential.Terms | None:
    """Return the terms of a sweep that stops when it is decided; None for a fixed number of seeds."""
    if data.standing is None:
        return None
    reached = of_metric(terms.metric)
    question = data.question or {}
    rule = StoppingRule.of(question.get("until") or {})
    return sequential.Terms(
        terms.direction,
        terms.margin,
        question.get("seeds") or (),
        _limits(terms.metric, values),
        reached.kind if reached else None,
        rule,
        best_value(terms.metric, terms.direction, _scores(values)),
    )


def _results(terms: ComparisonTerms, values: Values, by_looks: sequential.Terms | None) -> dict[str, ArmResult]:
    if by_looks:
        return sequential.compare_arms(values, terms.baseline, by_looks)
    reached = of_metric(terms.metric)
    return compare_arms(
        values,
        terms.baseline,
        terms.direction,
        margin=terms.margin,
        limits=_limits(terms.metric, values),
        outcome=reached.kind if reached else None,
        differ=terms.differ,
        averaged=terms.mean,
        rivals=terms.rivals,
    )


def _limits(metric: str, values: Values) -> Range | None:
    return metric_range(metric, _scores(values))


def _scores(values: Values) -> list[float]:
    scores: list[float] = []
    for by_seed in values.values():
        scores += finite(by_seed).values()
    return scores


def _baseline(requested: str | None, data: ComparisonInput) -> tuple[str | None, list[str]]:
    """Return the name of the baseline, and a remark where neither the user nor the sweep names one.

    requested: a unique part of its name will do
    """
    names = [arm.name for arm in data.arms]
    name = requested or data.baseline
    if name is not None and name not in names:
        matches = [arm for arm in names if name in arm]
        if len(matches) == 1:
            return matches[0], []
        raise UserError(f"baseline={name}: no such arm; there are {', '.join(names)}")
    if name is None and len(names) > 1:
        # The arm with the most runs allows the most paired comparisons.
        name = max(data.arms, key=lambda arm: len(arm.done)).name
        return name, [f"no baseline was given; {name} is used (--baseline ARM selects another)"]
    return name, []


def _expect(
    text: str,
    values: Values,
    terms: ComparisonTerms,
    missing: Mapping[str, str],
    by_looks: sequential.Terms | None,
) -> ExpectRow:
    """Return the verdict on the expectation. missing: arm without a result -> the reason."""
    try:
        if by_looks:
            return sequential.evaluate(text, values, by_looks, missing)
        return evaluate(
            text,
            values,
            terms.direction,
            margin=terms.margin,
            missing=missing,
            signs=of_metric(terms.metric) is not None,
            differ=terms.differ,
            end=best_value(terms.metric, terms.direction, _scores(values)),
        )
    except UserError as error:  # reported when the sweep file is read; the results of a frozen plan remain valid
        reason = str(error).removeprefix("expect: ")
        return expected_outcome(text, [ClauseRow(text=text, verdict="undecided", reason=reason)])


def _evidence(
    data: ComparisonInput,
    terms: ComparisonTerms,
    values: Values,
    by_looks: sequential.Terms | None,
    expect: ExpectRow | None,
) -> tuple[EvidenceRow | None, list[str]]:
    """Return the evidence on the decision of the sweep, and warnings where it is to be read with care."""
    if by_looks is None:
        return None, []
    assert data.standing is not None
    try:
        clauses = comparisons(terms.expected, list(values), terms.baseline)
    except UserError:  # see `_expect`
        return None, []
    judged = sequential.judged(clauses, values, by_looks)
    # Outcomes of whole runs are compared by their signs, so no mean is tested.
    doubts = [] if by_looks.outcome else sequential.warnings(judged, values, by_looks.limits)
    return sequential.evidence_row(data.standing, judged, by_looks, data.question or {}, expect), doubts


def _external(data: ComparisonInput, terms: ComparisonTerms, values: Values) -> list[ExternalRow]:
    """Return the figures of the sweep file beside the arms. They are of the sweep's own metric."""
    figures = (data.question or {}).get("external") or {}
    if not figures or terms.metric != data.metric:
        return []
    fixed = data.standing is None and terms.split_ratio is None
    return external_rows(figures, values, terms.direction, tested=fixed)


def _effects(
    data: ComparisonInput, terms: ComparisonTerms, values: Values, results: Mapping[str, ArmResult]
) -> EffectsRow | None:
    levels = {arm.name: arm.levels for arm in data.arms if arm.levels}
    if (data.question or {}).get("ladder"):
        return None  # its levels are sizes, between which the laws say more than a mean over them
    if data.kind == "one_at_a_time":
        if terms.baseline:
            return effects.single_factor_effects(results, levels, terms.baseline)
        return None
    if data.kind in ("grid", "inferred") and len(levels) == len(data.arms) and effects.is_grid(levels):
        seeds = max((len(finite(by_seed)) for by_seed in values.values()), default=0)
        variances = 1.0 if terms.split_ratio is None else inflation(seeds, terms.split_ratio)
        return effects.grid_effects(values, levels, variances)
    return None
