"""Render the home page: one HTML file, built as the page of a comparison is, with links to the folders beside it."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any, TypedDict

from blockyard.atomic_files import read_json, write_text
from blockyard.errors import UserError
from blockyard.report.home.stale import DATA, PAGE
from blockyard.report.home.telling_apart import is_other, telling_apart
from blockyard.report.load.arms import flatten
from blockyard.report.load.document import read_document
from blockyard.report.page.document import content_policy, encode, joined_script, joined_style, link, read_part
from blockyard.report.page.thin import plain
from blockyard.report.stats.metric_range import metric_range
from blockyard.runs.record import RunRecord
from blockyard.sweep.plan.sweep_plan import FILE as PLAN
from blockyard.sweep.plan.sweep_plan import FOLDER as SWEEPS
from blockyard.sweep.plan.sweep_plan import SweepPlan

STYLES = ("style", "tables", "charts", "home")
SCRIPTS = ("dom", "format", "theme", "search", "home_state", "home_runs", "home_compare", "home")
MAX_METRICS = 60  # the most often recorded ones
MAX_OPTIONS = 400  # that differ between the runs, the most often recorded ones
MAX_TEXT = 2000  # characters of a note, an answer or an option
FILES = ("config.yaml", "metrics.csv", "summary.json", "log.txt", "error.txt", "checkpoints")


class SweepSummary(TypedDict):
    """A sweep as the home page lists it.

    stale: the reason why its comparison is out of date; page: the path of its page, below the outputs
    """

    name: str
    claim: str | None
    verdict: str | None
    sense: str | None
    answer: str | None
    better_baseline: str | None
    metric: str | None
    stale: str | None
    time: str | None
    runs: list[str]
    arms: list[str]
    page: str | None


class RunSummary(TypedDict):
    """A run as the home page lists it. options: the values of the page's `keys`; files: the names of FILES there."""

    run: str
    state: str
    reason: str | None
    started: str | None
    seconds: float | None
    steps: int | None
    parameters: int | None
    metrics: dict[str, float]
    choices: dict[str, str]
    tags: list[str]
    note: str
    archived: bool
    folder: str
    files: list[str]
    options: list[str | None]


class HomeDocument(TypedDict):
    """The content of the home page.

    keys: the options in which runs differ; shared: the other options, with their value
    ranges: metric -> its lowest and highest value, for metrics that have limits
    apart: the options that tell configs of equal choices apart
    """

    title: str
    sweeps: list[SweepSummary]
    keys: list[str]
    shared: dict[str, str]
    directions: dict[str, str]
    metrics: list[str]
    ranges: dict[str, list[float]]
    families: list[str]
    apart: list[str]
    runs: list[RunSummary]


def home(root: Path, records: Sequence[RunRecord]) -> HomeDocument:
    """Return the content of the page of the runs `records` under `root`, and of all sweeps there."""
    options: list[dict[str, str]] = []  # of each run, as text
    for record in records:
        flat = flatten({key: value for key, value in record.config.items() if not is_other(key)})
        options.append({key: _text(value)[:MAX_TEXT] for key, value in flat.items()})
    keys = _differing(options)
    common = set.intersection(*(set(values.items()) for values in options)) if options else set()
    families = _families(records)
    recorded: Counter[str] = Counter()
    directions: dict[str, str] = {}
    for record in records:
        recorded.update(record.metrics.keys())
        directions |= record.directions
    metrics = [name for name, _ in recorded.most_common(MAX_METRICS)]
    ranges: dict[str, list[float]] = {}
    for name in metrics:
        limits = metric_range(name, [record.metrics[name] for record in records if name in record.metrics])
        if limits is not None:
            ranges[name] = list(limits)
    return {
        "title": root.absolute().name,
        "sweeps": sweeps(root),
        "keys": keys,
        "shared": dict(sorted(common)),
        "directions": directions,
        "metrics": metrics,
        "ranges": ranges,
        "families": families,
        "apart": telling_apart(records, families),
        "runs": [_run(root, record, values, keys) for record, values in zip(records, options, strict=True)],
    }


def sweeps(root: Path) -> list[SweepSummary]:
    """Return a row for each sweep, the latest first: name, claim, verdict, answer, its runs and the arm of each."""
    plans = sorted((root / SWEEPS).glob(f"*/{PLAN}"))
    summaries = [_sweep(path.parent) for path in plans]
    return sorted(summaries, key=lambda summary: summary["time"] or "", reverse=True)


def _sweep(folder: Path) -> SweepSummary:
    row: SweepSummary = {
        "name": folder.name,
        "claim": None,
        "verdict": None,
        "sense": None,
        "answer": None,
        "better_baseline": None,
        "metric": None,
        "stale": None,
        "time": None,
        "runs": [],
        "arms": [],
        "page": f"{SWEEPS}/{folder.name}/{PAGE}" if (folder / PAGE).is_file() else None,
    }
    try:
        plan = SweepPlan.load(folder)
    except UserError as error:
        return row | {"answer": str(error)[:MAX_TEXT]}
    row["claim"] = plan.question.get("claim")
    row["time"] = plan.facts.get("time")
    row["runs"] = [cell.run for cell in plan.cells]
    row["arms"] = [plan.variants[cell.variant].arm for cell in plan.cells]
    row["metric"] = plan.question.get("metric")
    try:
        content = read_json(folder / DATA)
    except FileNotFoundError:
        return row | {"answer": "No comparison yet."}
    except (OSError, ValueError) as error:
        return row | {"answer": str(error)[:MAX_TEXT]}
    try:
        compared = read_document(content)
    except ValueError:
        return row | {"answer": f"{folder / DATA} is damaged"}
    return row | {
        "verdict": str(compared.expect.verdict) if compared.expect else None,
        "sense": compared.expect.sense if compared.expect else None,
        "answer": str(compared.answer or "")[:MAX_TEXT],
        "better_baseline": str(compared.better_baseline or "")[:MAX_TEXT] or None,
        "metric": compared.metric,
        "stale": compared.stale,
    }


def _run(root: Path, record: RunRecord, options: dict[str, str], keys: list[str]) -> RunSummary:
    folder = root / record.run
    return {
        "run": record.run,
        "state": record.state,
        "reason": (record.reason or record.damage or "")[:MAX_TEXT] or None,
        "started": record.started,
        "seconds": record.seconds,
        "steps": record.steps,
        "parameters": record.parameters,
        "metrics": record.metrics,
        "choices": {key: value for key, value in record.choices.items() if value is not None},
        "tags": list(record.tags),
        "note": record.note[:MAX_TEXT],
        "archived": record.archived,
        "folder": str(folder),
        "files": [name for name in FILES if (folder / name).exists()],
        "options": [options.get(key) for key in keys],
    }


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _differing(options: list[dict[str, str]]) -> list[str]:
    """Return the options in which some runs differ, the options of most runs first; None counts as a value."""
    counts: Counter[str] = Counter()
    for values in options:
        counts.update(values.keys())
    differing = []
    for key in counts:
        if len({values.get(key) for values in options}) > 1:
            differing.append(key)
    differing.sort(key=lambda key: -counts[key])
    return sorted(differing[:MAX_OPTIONS])


def _families(records: Sequence[RunRecord]) -> list[str]:
    """Return the families with different choices in different runs."""
    families: dict[str, None] = {}
    for record in records:
        families |= dict.fromkeys(record.choices)
    differing = []
    for family in families:
        # A run without the family has another choice than a run with it.
        choices = {record.choices.get(family) for record in records}
        if len(choices) > 1:
            differing.append(family)
    return differing


def write_home(path: Path, root: Path, records: Sequence[RunRecord]) -> Path:
    """Write the home page of the runs `records` under `root` to `path`, atomically. Raises OSError."""
    write_text(path, render_home(home(root, records), root, path.parent))
    return path


def render_home(content: HomeDocument, root: Path, folder: Path) -> str:
    """Return the page. folder: of its file, from which links to runs and sweeps start"""
    style = joined_style(STYLES)
    script = joined_script(SCRIPTS)
    runs = []
    for run in content["runs"]:
        row: dict[str, Any] = dict(run)
        row["link"] = link(row.pop("folder"), folder)
        runs.append(row)
    sweeps = []
    for sweep in content["sweeps"]:
        page = None
        if sweep["page"]:
            page = link(str(root / sweep["page"]), folder)
        sweeps.append(sweep | {"page": page})
    return Template(read_part("home.html")).substitute(
        title=html.escape(content["title"]),
        policy=html.escape(content_policy(style, script)),
        style=style,
        script=script,
        data=encode(plain({**content, "runs": runs, "sweeps": sweeps})),
        plain=_without_script(content),
    )


def _without_script(content: HomeDocument) -> str:
    """Return the lists of sweeps and runs as HTML, for browsers with scripts disabled."""
    lines = [f"{sweep['name']}: {sweep['claim'] or ''} {sweep['verdict'] or ''}" for sweep in content["sweeps"]]
    lines += [f"{run['run']}: {run['state']}" for run in content["runs"]]
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)
