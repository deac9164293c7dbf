"""Create a W&B workspace with the page's panels: answer, arms, learning curves, quality against cost, configs.

Reference: the package wandb-workspaces (wandb_workspaces.workspaces, wandb_workspaces.reports.v2)

W&B draws the panels from the runs logged there, so they follow a running sweep. It cannot compute intervals, paired
differences and verdicts; those are in the table that the summary run logs.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, read_yaml
from blockyard.engine.loggers._wandb import logged_in
from blockyard.errors import UserError
from blockyard.report.load.document import ComparisonDocument
from blockyard.runs.folder import CONFIG, RUN
from blockyard.runs.metric_name import MetricName

_ESCAPED = {sign: f"\\{sign}" for sign in r"\`*_[]#|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
# The columns of a W&B run.
_ARM = "JobType"
_GROUP = "Group"
_ID = "ID"


@dataclass(frozen=True)
class _RunFilter:
    """The runs that the panels show: the runs of one group, or the runs with these ids."""

    entity: str | None
    project: str
    group: str | None
    ids: tuple[str, ...] = ()


def workspace(comparison: ComparisonDocument, *, outputs: str = "outputs") -> str:
    """Create the workspace of a comparison and return its URL.

    Raises UserError where the package or a login is missing, no run was logged to W&B, or W&B refuses.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise UserError("board --wandb needs the package wandb-workspaces: pip install 'blockyard[workspaces]'")
    if not logged_in():
        raise UserError(
            "board --wandb needs a login: run `wandb login` or set WANDB_API_KEY; "
            "without one, `blockyard board` shows the same page locally"
        )
    runs = _run_filter(comparison, Path(outputs))
    try:
        view = build(comparison, runs, runs.entity or _default_entity())
        view.save()
        return str(view.url)
    except UserError:
        raise
    except Exception as error:  # W&B and the libraries under it raise errors of many types
        lines = str(error).strip().splitlines()
        reason = (lines[0] if lines else type(error).__name__)[:200]
        raise UserError(f"W&B did not create the workspace: {reason}") from error


def build(comparison: ComparisonDocument, runs: _RunFilter, entity: str) -> Any:
    """Return the workspace, not yet saved. Uses no network."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    metric = str(comparison.metric)
    validation = str(MetricName.parse(metric).on("val").logged())
    by_arm: dict[str, Any] = {"groupby": wr.Metric(_ARM), "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
    curves = list(dict.fromkeys([validation, "val/loss", "train/loss"]))
    final = [name for name in dict.fromkeys([metric, *comparison.metrics]) if name.startswith("test/")]
    bars: list[Any] = []
    for name in final or [metric]:
        bars.append(wr.BarPlot(title=name, metrics=[wr.SummaryMetric(name)], orientation="h", **by_arm))
    lines: list[Any] = []
    for name in curves:
        for axis in ("Step", "samples", "seconds"):
            lines.append(wr.LinePlot(title=f"{name} by {axis}", x=axis, y=[name], **by_arm))
    costs: list[Any] = []
    for cost in ("flops_per_sample", "parameters", "step_seconds"):
        x = wr.SummaryMetric(cost)
        costs.append(wr.ScatterPlot(title=f"{metric} by {cost}", x=x, y=wr.SummaryMetric(metric), log_x=True))
    # By its group a workspace follows a running sweep, also to runs that do not exist yet.
    selected = ws.Metric(_ID).isin(list(runs.ids))
    if runs.group:
        selected = ws.Metric(_GROUP) == runs.group
    return ws.Workspace(
        entity=entity,
        project=runs.project,
        name=str(comparison.title),
        sections=[
            ws.Section(
                name="Answer",
                is_open=True,
                panels=[
                    wr.MarkdownPanel(markdown=_answer(comparison)),
                    wr.WeavePanelSummaryTable(table_name="comparison"),
                ],
            ),
            ws.Section(name="Arms", is_open=True, panels=bars),
            ws.Section(name="Learning curves", is_open=True, panels=lines),
            ws.Section(name="Quality against cost", is_open=True, panels=costs),
            ws.Section(name="What differs", panels=[wr.RunComparer(diff_only="split")]),
        ],
        runset_settings=ws.RunsetSettings(filters=ws.And(selected), groupby=[ws.Metric(_ARM)]),
    )


def _answer(comparison: ComparisonDocument) -> str:
    """Return claim, answer, expectation and warnings as Markdown."""
    lines = []
    if comparison.claim:
        lines.append(f"**{_plain(comparison.claim)}**")
    if comparison.answer:
        lines.append(_plain(comparison.answer))
    if comparison.better_baseline:
        lines.append(f"**{_plain(comparison.better_baseline)}**")
    if comparison.expect:
        expect = comparison.expect
        lines.append(f"expected {_plain(expect.text)}: {expect.verdict} ({_plain(expect.reason)})")
    lines += [f"- {_plain(warning)}" for warning in comparison.warnings]
    return "\n\n".join(lines)


def _plain(text: Any) -> str:
    """Return text escaped for Markdown and HTML."""
    return "".join(_ESCAPED.get(sign, sign) for sign in str(text))


def _run_filter(comparison: ComparisonDocument, outputs: Path) -> _RunFilter:
    """Return the filter that selects the runs at W&B, from what run.json and config.yaml record."""
    logged = []
    for name in dict.fromkeys(cell.run for cell in comparison.cells if cell.run):
        try:
            record = read_json(outputs / name / RUN).get("wandb") or {}
            logger = read_yaml(outputs / name / CONFIG).get("logger") or {}
        except (OSError, ValueError):
            continue
        if record.get("id"):
            logged.append((record.get("entity"), record.get("project"), logger.get("group"), record["id"]))
    if not logged:
        raise UserError(
            "none of these runs was logged to W&B: run them with logger=wandb; `wandb sync` uploads offline runs"
        )
    projects = sorted({(str(entity or ""), str(project or "")) for entity, project, _, _ in logged})
    if len(projects) > 1:
        names = ", ".join("/".join(filter(None, project)) for project in projects)
        raise UserError(f"these runs are in {len(projects)} projects of W&B ({names}); a workspace shows one project")
    groups = {group for _, _, group, _ in logged}
    return _RunFilter(
        entity=logged[0][0],
        project=logged[0][1] or "blockyard",
        group=next(iter(groups)) if len(groups) == 1 else None,
        ids=tuple(run for *_, run in logged),
    )


def _default_entity() -> str:
    import wandb

    entity = wandb.Api().default_entity
    if not entity:
        raise UserError("this W&B login has no default entity; set logger.entity=NAME for the runs")
    return str(entity)
