"""Resolve paths, names and ids on a command line to run folders and sweep folders."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from blockyard.atomic_files import read_json
from blockyard.config.untrusted.local_path import local_path
from blockyard.errors import UserError, near
from blockyard.report.load.arms import ComparisonInput
from blockyard.report.load.from_plan import from_plan, plan_drift
from blockyard.report.load.from_runs import from_runs, split_keys
from blockyard.report.load.metrics import direction_by_name
from blockyard.report.load.run_record import LoadedRun, read_run
from blockyard.runs.folder import CONFIG, RUN
from blockyard.runs.record import RunRecord
from blockyard.runs.store import find, runs
from blockyard.sweep.plan.sweep_plan import FILE as PLAN
from blockyard.sweep.plan.sweep_plan import FOLDER as SWEEPS
from blockyard.sweep.plan.sweep_plan import MetricFacts, SweepPlan

_MAX_LISTED = 6
TRIAL = "trial"  # the key of run.json that says that a run is a trial of a search
Selection = SweepPlan | str | os.PathLike[str] | RunRecord | Sequence[str | os.PathLike[str] | RunRecord]


@dataclass(frozen=True)
class Resolved:
    """Run folders and sweep folders.

    files: sweep files by which a sweep was named
    listed: the runs that came with a folder of many instead of being named one by one
    """

    runs: tuple[Path, ...]
    sweeps: tuple[Path, ...]
    files: tuple[Path, ...] = ()
    listed: frozenset[Path] = frozenset()


def resolve(
    args: Sequence[str | os.PathLike[str] | RunRecord], outputs: str | os.PathLike[str] = "outputs"
) -> Resolved:
    """Return the runs and sweeps that the arguments name. Raises UserError for the first that names none."""
    if not args:
        raise UserError("no run given: name a sweep, run folders, names or ids (`blockyard compare outputs`)")
    paths: dict[Path, None] = {}
    sweeps: dict[Path, None] = {}
    files: dict[Path, None] = {}
    explicit: set[Path] = set()
    folder = local_path(outputs, "outputs")
    for arg in args:
        # A record knows its run by the path below the outputs, which may have moved since.
        text = str(folder / arg.run) if isinstance(arg, RunRecord) else os.fspath(arg)
        one = _resolve_one(text.strip(), folder)
        paths |= dict.fromkeys(one.runs)
        sweeps |= dict.fromkeys(one.sweeps)
        files |= dict.fromkeys(one.files)
        explicit |= set(one.runs) - one.listed
    return Resolved(tuple(paths), tuple(sweeps), tuple(files), frozenset(paths) - explicit)


def _resolve_one(arg: str, outputs: Path) -> Resolved:
    if not arg:
        raise UserError(
            "no run given: pass a sweep, a run or a folder of runs, for example `blockyard compare outputs`"
        )
    path = local_path(arg)
    if _exists(path):
        return _from_path(path.absolute(), arg, outputs)
    if "/" not in arg and _exists(outputs / SWEEPS / arg / PLAN):
        return Resolved((), ((outputs / SWEEPS / arg).absolute(),))
    return Resolved(tuple(_by_name(arg, outputs)), ())


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a zero byte: not a path
        return False


def _from_path(path: Path, arg: str, outputs: Path) -> Resolved:
    """Return the runs and sweeps of a path that exists: a sweep file, a file of a run, or a folder."""
    if not path.is_dir():
        if path.suffix in (".yaml", ".yml") and path.name != CONFIG:
            folder = (outputs / SWEEPS / path.stem).absolute()
            if (folder / PLAN).is_file():
                return Resolved((), (folder,), (path,))
            raise UserError(
                f"{arg} has not been run under {outputs}: run `blockyard sweep {arg}`, or pass outputs=FOLDER"
            )
        if path.name in (PLAN, CONFIG):
            return _from_path(path.parent, arg, outputs)
        raise UserError(f"{arg} is a file: pass a run's folder, a folder of runs, or a sweep's folder")
    if (path / PLAN).is_file():
        return Resolved((), (path,))
    if (path / CONFIG).is_file():
        return Resolved((path,), ())
    seeds = [entry.path for entry in runs(path.parent) if entry.path.parent == path]
    if seeds:
        return Resolved(tuple(sorted(seeds)), ())
    inside = [entry.path for entry in runs(path)]
    if not inside:
        content = ", ".join(sorted(child.name for child in path.iterdir())[:_MAX_LISTED])
        raise UserError(f"{arg} contains no run (a folder with a {CONFIG}); it contains {content or 'nothing'}")
    return Resolved(tuple(sorted(inside)), (), listed=frozenset(inside))


def _by_name(arg: str, outputs: Path) -> list[Path]:
    """Return the runs of a name or id: an arm's name stands for all its seeds, NAME/s3 for one of them."""
    entries = runs(outputs)
    if not entries:
        raise UserError(f"{arg}: no run, sweep or folder of this name; {outputs.absolute()} holds none")
    if arg == "last":
        return [find(arg, outputs).path]
    candidates = entries
    head, _, seed = arg.rpartition("/")
    if head and seed[:1] == "s" and seed[1:].isdigit():
        candidates = [entry for entry in entries if entry.path.name == seed]
    else:
        head = arg
    exact = []
    beginning = []
    for entry in candidates:
        try:
            names = entry.names()
        except UserError:  # of an unreadable run, whose folders still have names
            names = (entry.name, entry.path.parent.name)
        if head in names:
            exact.append(entry.path)
        if any(name.startswith(head) for name in names):
            beginning.append(entry.path)
    # A whole name is meant before the names that begin with it.
    if exact or beginning:
        return sorted(exact or beginning)
    if os.path.isdir(outputs / SWEEPS / head):  # False, too, for a name that no file can have
        raise UserError(f"{outputs / SWEEPS / head} has no {PLAN}; `blockyard sweep` of its file writes it again")
    sweeps = sorted(path.parent.name for path in (outputs / SWEEPS).glob(f"*/{PLAN}"))
    run_names: set[str] = set()
    for entry in entries:
        run_names |= {entry.name, entry.path.parent.name}
    names_here = [*sweeps, *sorted(run_names)]
    nearest = near(arg, names_here) or names_here[:_MAX_LISTED]
    raise UserError(f"{arg}: no such path, run or sweep under {outputs}; there are {', '.join(nearest)}")


def load_selection(
    selection: Selection,
    *,
    outputs: str | os.PathLike[str] = "outputs",
    by: str | Sequence[str] | None = None,
    task: int = 0,
    metric: str | None = None,
) -> ComparisonInput:
    """Return the arms of a sweep as planned, or any runs as arms inferred from their configs.

    selection: a plan, or paths, names and ids: a sweep's folder, name or file; run folders, as paths or as `train` and
        `runs` return them; a folder of many runs
    by: a config key, or several with commas, with the arms as their values
    task: the index of the task, for runs of several that no sweep planned
    metric: the requested one, which runs may have to compute from their evaluations
    Raises UserError for what does not exist or cannot be compared.
    """
    if isinstance(selection, SweepPlan):
        plans = [selection]
        resolved = Resolved((), ())
    else:
        if isinstance(selection, str | os.PathLike | RunRecord):
            selection = [selection]
        resolved = resolve(list(selection), outputs)
        plans = [SweepPlan.load(folder) for folder in resolved.sweeps]
    keys = split_keys(by)
    if len(plans) == 1 and not resolved.runs and not keys:
        result = from_plan(plans[0], metric)
    else:
        result = _merge(plans, resolved, keys, task, metric)
    warnings = list(result.warnings)
    for path in resolved.files:
        for plan in plans:
            drift = plan_drift(path, plan)
            if drift:
                warnings.append(drift)
    return replace(result, warnings=warnings)


def _merge(
    plans: list[SweepPlan], resolved: Resolved, by: Sequence[str], task: int, metric: str | None
) -> ComparisonInput:
    """Return the runs of several sweeps, of no sweep, or of one sweep regrouped by a key.

    Raises UserError for a sweep together with its confirmation.
    """
    names = [plan.name for plan in plans]
    for plan in plans:
        confirms = plan.facts.get("confirms")
        if confirms is not None and confirms["sweep"] in names:
            raise UserError(
                f"{plan.name} asks {confirms['sweep']} again on fresh seeds, so their runs do not count together; "
                "compare each by itself"
            )
    paths: dict[Path, None] = dict.fromkeys(resolved.runs)
    sweeps = [from_plan(plan, metric) for plan in plans]
    not_started = 0
    for sweep in sweeps:
        for arm in sweep.arms:
            for run in arm.runs:
                if run.state == "missing":
                    not_started += 1
                else:
                    paths[run.path.absolute()] = None
    if not paths:
        raise UserError("nothing to compare yet: no cell of the sweep has been started")
    selected: list[Path] = list(paths)
    notes: list[str] = []
    if not by:
        selected, notes = keep_best_trials(selected, resolved.listed)
    names = names or [path.name for path in resolved.runs[:1]]
    if plans:
        title = " and ".join(names)
    else:
        folders = {path.absolute().parents[1] for path in paths}  # each holds runs as NAME-HASH/sSEED
        title = "runs"
        if len(folders) == 1:
            title = folders.pop().name or title  # the root of a file system has no name
    of_sweeps = {sweep.metric for sweep in sweeps}
    if metric is None and len(of_sweeps) == 1:
        (metric,) = of_sweeps
    result = from_runs(selected, by=by, title=title, task=task, requested=metric)
    if not_started:
        notes = [*notes, f"{not_started} cells of {', '.join(names)} have not been started"]
    result = replace(result, warnings=[*result.warnings, *notes])
    if sweeps and not resolved.runs:
        return _with_question(result, sweeps, by)
    return result


def _with_question(result: ComparisonInput, sweeps: list[ComparisonInput], by: Sequence[str]) -> ComparisonInput:
    """Return the runs with the metric and the question of their sweeps, without the parts about the sweeps' arms."""
    metrics = {(sweep.metric, sweep.direction) for sweep in sweeps}
    if len(metrics) == 1:
        ((metric, direction),) = metrics
        result = replace(result, metric=metric, direction=direction)
    if len(sweeps) > 1:
        return result
    (sweep,) = sweeps
    question = sweep.question or {}
    warnings = list(result.warnings)
    keys = " and ".join(by)
    if question.get("until"):
        warnings.append(
            f"how many seeds each arm of {sweep.title} has followed from its results (until: decided): p values and "
            f"intervals by {keys} would hold for a number fixed before"
        )
    dropped = []
    for key in ("expect", "baseline"):
        if question.get(key):
            dropped.append(f"{key} ({question[key]})")
    if dropped:
        warnings.append(
            f"the arms are the values of {keys}, not those of {sweep.title}; ignored, because they refer to its own "
            f"arms: {', '.join(dropped)}"
        )
    question = {**question, "expect": None, "baseline": None, "ladder": None}
    return replace(result, question=question, warnings=warnings)


@dataclass(frozen=True)
class _Study:
    """The search of one arm. storage: the URL of its database."""

    storage: str
    arm: str

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return Path(self.storage.removeprefix("sqlite:///")).parent


def keep_best_trials(paths: Sequence[Path], listed: Collection[Path]) -> tuple[list[Path], list[str]]:
    """Return the runs without the trials that were not chosen, and a note on each search.

    The other trials of a search tried settings that were not chosen. As arms of a comparison they would answer
    questions that the sweep does not ask.

    listed: the runs that came with a folder of many; runs named one by one stay
    """
    trials: dict[_Study, list[LoadedRun]] = {}
    arms_with_runs: set[Path] = set()  # parent folders of runs that are not trials
    for path in paths:
        study = _study(path) if path in listed else None
        if study is None:
            arms_with_runs.add(path.parent)
        else:
            trials.setdefault(study, []).append(read_run(path))
    dropped: set[Path] = set()
    notes = []
    for study, tried in trials.items():
        metric, direction = _metric(study)
        best = _best(tried, metric, direction)
        # A setting that was run on other seeds too is an arm of its own, whichever search tried it.
        kept_folders = set(arms_with_runs)
        kept = "none of them finished"
        if best is not None:
            kept_folders.add(best.path.parent)
            kept = f"only the best on {metric} is kept, {best.run}"
        dropped.update(run.path for run in tried if run.path.parent not in kept_folders)
        notes.append(
            f"{len(tried)} runs are trials of the search {study.folder.name}, arm {study.arm}; {kept}; "
            f"`blockyard compare {study.folder.name}` shows all"
        )
    # Without a finished trial or any other run, all trials are shown rather than nothing.
    if not dropped or len(dropped) == len(paths):
        return list(paths), []
    return [path for path in paths if path not in dropped], notes


def _study(path: Path) -> _Study | None:
    try:
        trial = read_json(path / RUN).get(TRIAL)
        if isinstance(trial, dict):
            return _Study(str(trial["storage"]), str(trial["study"]))
        return None
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _metric(study: _Study) -> tuple[str, str]:
    """Return the metric that the search optimized and its direction; the loss where the sweep's folder is gone."""
    try:
        metric = SweepPlan.load(study.folder).facts.get("metric") or MetricFacts()
    except UserError:
        metric = MetricFacts()
    name = str(metric.get("validation") or "val/loss")
    # The direction of the comparison may be another one: fewer steps until a higher accuracy are better.
    return name, str(metric.get("validation_direction") or direction_by_name(name) or metric.get("direction") or "min")


def _best(runs: list[LoadedRun], metric: str, direction: str) -> LoadedRun | None:
    """Return a run of the best setting by the mean over seeds, among the settings that ran on the most seeds."""
    sign = -1.0 if direction == "max" else 1.0
    settings: dict[Path, list[tuple[float, LoadedRun]]] = {}
    for run in runs:
        value = run.value(metric)
        if value is not None:
            settings.setdefault(run.path.parent, []).append((sign * value, run))
    if not settings:
        return None
    most = max(map(len, settings.values()))
    means: list[tuple[float, str, LoadedRun]] = []
    for tried in settings.values():
        if len(tried) == most:
            mean = math.fsum(value for value, _ in tried) / most
            means.append((mean, tried[0][1].run, tried[0][1]))
    # Of equal means the first name counts, so that the choice does not depend on the order of the folders.
    return min(means, key=lambda entry: entry[:2])[2]
