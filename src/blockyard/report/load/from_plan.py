"""The arms of a sweep, read from its frozen plan and the run folders it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from blockyard.atomic_files import read_json
from blockyard.errors import UserError, first_line
from blockyard.report.load.arms import ArmRuns, ComparisonInput
from blockyard.report.load.document import SettingRow
from blockyard.report.load.metrics import default_metric
from blockyard.report.load.run_record import LoadedRun, read_run
from blockyard.sweep.plan.compact_json import without_secrets
from blockyard.sweep.plan.history import DESCRIPTIVE_KEYS
from blockyard.sweep.plan.sweep_plan import MetricFacts, SweepPlan
from blockyard.sweep.search import tune
from blockyard.sweep.spec.question import read
from blockyard.sweep.spec.threshold import Threshold, of_metric
from blockyard.sweep.stopping.due import Standing, standing


def from_plan(plan: SweepPlan, requested: str | None = None) -> ComparisonInput:
    """Return the arms of a sweep with the runs it has so far. Raises UserError where two arms share a run.

    requested: a metric that is compared in place of the sweep's own

    Settings are chosen by the validation twin of the sweep's own metric, whatever metric is reported.
    """
    names = [*plan.metric_names, *([requested] if requested else [])]
    cells = []
    for cell in plan.cells:
        variant = plan.variants[cell.variant]
        run = read_run(
            plan.path(cell),
            arm=variant.arm,
            seed=cell.seed,
            setting=variant.setting,
            variant=cell.variant,
            names=names,
        )
        cells.append(run)
    refuse_shared(cells)
    metric = plan.facts.get("metric") or MetricFacts()
    reached = of_metric(metric.get("name"))
    if reached:
        never = [run.run for run in cells if run.diverged]
        outcomes = reached.outcomes({run.run: (run.cost | run.metrics, run.path) for run in cells if run.done}, never)
        cells = [_with_outcome(run, reached, outcomes.get(run.run)) for run in cells]
    metrics = {run.run: run.cost | run.metrics for run in cells if run.done}
    failed = {run.run for run in cells if run.state == "failed"}
    chosen = tune.chosen_variants(plan, metrics, failed)
    now = standing(plan, metrics, failed)
    due = {(cell.variant, cell.seed) for cell in now.due}
    # A sweep that stops early plans more cells than it will start.
    records = [run for run in cells if run.state != "missing" or (run.variant, run.seed) in due]
    question = plan.question
    refused = []
    for variant_refused in plan.refused:
        reason = "; ".join(variant_refused.reasons)
        setting = dict(variant_refused.setting)
        refused.append(LoadedRun(variant_refused.arm, 0, plan.folder, "refused", reason, setting=setting))
    return ComparisonInput(
        title=plan.name,
        arms=[_arm(plan, index, records, chosen, now) for index in range(len(plan.arms))],
        records=[*records, *refused],
        kind=str(question.get("kind") or "arms"),
        question=without_secrets(dict(question)),  # the plan in memory still has those of the sweep file
        baseline=question.get("baseline"),
        metric=question.get("metric") or metric.get("name") or default_metric(records),
        direction=metric.get("direction"),
        folder=plan.folder,
        facts=plan.facts.copy(),
        tuning=_trials(plan) if question.get("search") else _settings(plan, metrics, failed),
        notes=[str(note) for note in plan.facts.get("notes") or ()],
        standing=now if question.get("until") else None,
        warnings=[*plan.facts.get("remarks", ()), *_added_seeds(plan), *_beyond_the_stop(plan, records, now)],
    )


def _added_seeds(plan: SweepPlan) -> list[str]:
    """Return a warning where seeds were added to a fixed number of them whose results could be seen."""
    seeds = set(plan.question.get("seeds") or ())
    if plan.question.get("until"):
        return []
    for path in sorted(plan.folder.glob("plan-*.json")):  # as `plan.history` keeps earlier plans
        try:
            before = read_json(path)["question"]
            fewer = set(before["seeds"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not before.get("until") and fewer < seeds:
            return [
                f"seeds were added to the {len(fewer)} of an earlier plan, whose results could be seen: p holds for a "
                "number that is fixed before; --until-decided holds whenever it stops"
            ]
    return []


def _beyond_the_stop(plan: SweepPlan, records: list[LoadedRun], standing: Standing) -> list[str]:
    """Return a warning where more runs have finished than the sweep needed for its decision."""
    due = {(cell.variant, cell.seed) for cell in standing.due}
    more = 0
    for record in records:
        if record.done and (record.variant, record.seed) not in due:
            more += 1
    if not plan.question.get("until") or standing.reason == "open" or not more:
        return []
    return [
        f"{more} finished runs are of seeds after those at which the sweep stopped: they count in means, intervals and "
        "the evidence, and not in the decision"
    ]


def _with_outcome(run: LoadedRun, reached: Threshold, value: float | None) -> LoadedRun:
    """Return the run with the outcome that the sweep compares among its metrics."""
    if value is None:
        return run
    if not run.done:
        return replace(run, outcome={str(reached): value})
    metrics = {**run.metrics, str(reached): value}
    directions = {**(run.summary.get("directions") or {}), str(reached): reached.direction}
    return replace(run, summary={**run.summary, "metrics": metrics, "directions": directions})


def refuse_shared(records: list[LoadedRun]) -> None:
    """Raise UserError where two arms have the same run: they built the same model."""
    arms: dict[str, dict[str, None]] = {}
    for record in records:
        arms.setdefault(record.path.parent.name, {})[record.arm] = None
    for run, names in arms.items():
        if len(names) > 1:
            raise UserError(
                f"the arms {' and '.join(names)} are the same run ({run}): they differ in no option that changes "
                "the result; remove one of them"
            )


def _settings(plan: SweepPlan, metrics: tune.Values, failed: set[str]) -> list[SettingRow]:
    """Return every setting that was tried, with its mean on validation."""
    if not plan.question.get("tune"):
        return []
    settings = []
    for result in tune.setting_results(plan, metrics, failed):
        values = {str(seed): value for seed, value in result.values.items()}
        row = SettingRow(
            arm=result.arm, setting=dict(result.setting), mean=result.mean, values=values, chosen=result.chosen
        )
        settings.append(row)
    return settings


def _trials(plan: SweepPlan) -> list[SettingRow]:
    """Return every trial of a search, with its value on validation."""
    search = plan.facts.get("search")
    if search is None:
        return []
    seed = str(search.get("seed", 0))
    setting_rows = []
    for arm, study in (search.get("arms") or {}).items():
        for trial in study.get("trials") or []:
            mean = trial.get("value")
            values = dict(trial.get("values", {}))
            if not values and mean is not None:  # a plan of an earlier release has no values of single seeds
                values = {seed: mean}
            row = SettingRow(
                arm=arm,
                setting=trial.get("setting") or {},
                mean=mean,
                values=values,
                chosen=study.get("chosen") == f"{arm}#{trial.get('number')}",
                state=trial.get("state"),
            )
            setting_rows.append(row)
    return setting_rows


def _arm(plan: SweepPlan, index: int, records: list[LoadedRun], chosen: dict[str, str], standing: Standing) -> ArmRuns:
    arm = plan.arms[index]
    variants = [variant for variant in plan.variants.values() if variant.arm == arm.name]
    selected = plan.variants.get(chosen.get(arm.name, ""))
    shown = selected or (variants[0] if variants else None)
    planned = plan.cells
    if plan.question.get("until") and selected is not None:
        planned = tuple(cell for cell in standing.due if cell.variant == selected.key)
    runs = [run for run in records if selected is not None and run.variant == selected.key]
    seeds = {cell.seed for cell in planned}
    return ArmRuns(
        name=arm.name,
        config=without_secrets(dict(shown.config)) if shown else {},
        choices=dict(shown.choices) if shown else {},
        overrides=tuple(without_secrets(list(arm.overrides))),
        levels=without_secrets(dict(arm.levels)),
        runs=runs,
        planned=max(len(seeds), sum(run.done for run in runs)) or len(plan.question.get("seeds") or ()),
        chosen=dict(selected.setting) if selected and selected.setting else None,
        tried=_tried(plan, arm.name, records),
        refused=tuple(reason for r in plan.refused if r.arm == arm.name for reason in r.reasons),
    )


def _tried(plan: SweepPlan, arm: str, records: list[LoadedRun]) -> int | None:
    """Return how many settings of an arm gave a value or were pruned; None where nothing is tuned."""
    if plan.question.get("search"):
        search = plan.facts.get("search")
        trials = search["arms"][arm]["trials"] if search and arm in search["arms"] else []
        return sum(trial.get("state") in ("complete", "pruned") for trial in trials)
    if plan.question.get("tune"):
        return len({run.variant for run in records if run.arm == arm and run.done})
    return None


def plan_drift(path: Path, plan: SweepPlan) -> str | None:
    """Return a warning where the file by which a sweep was named differs from its frozen plan, else None."""
    if path.stem != plan.name:
        return None
    again = f"`blockyard sweep {path}` runs what is new"
    try:
        now = read(path).as_dict()
    except UserError as error:
        reason = first_line(error)
        return f"{path} can no longer be read as a sweep file ({reason}); the results are those of the frozen plan"
    # Overrides of the command line are not changes of the file.
    now["base"] = [*now["base"], *(plan.facts.get("overrides") or ())]
    before = plan.question
    until = before.get("until")
    if until and now["until"] and until.get("by") != "boundary":  # the planner may replace the rule of the file
        now["until"] = {key: until[key] if key == "by" else now["until"][key] for key in until}
    keys = dict.fromkeys([*now, *before])
    differing = []
    for key in keys:
        if key in DESCRIPTIVE_KEYS:
            continue
        # The plan on disk has no secrets, so the file is compared without them.
        if without_secrets(now.get(key)) != without_secrets(before.get(key)):
            differing.append(key)
    if not differing:
        return None
    changed = ", ".join(differing)
    file = plan.facts.get("file")
    if file and Path(file) != path.absolute():
        return f"the results are those of {file}; {path} differs from it in {changed}; {again}"
    return f"{path} has changed in {changed} since its plan was frozen; the results are those of the old file; {again}"
