"""The page's panels as a W&B workspace: answer, arms, learning curves, quality against cost, configs.

Reference: the package wandb-workspaces (wandb_workspaces.workspaces, wandb_workspaces.reports.v2)

W&B draws from the runs it was sent, so the panels follow a sweep that goes on. Intervals, paired
differences and verdicts are W&B's to show only as the table that the summary run logs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json, read_yaml
from blockyard.engine.loggers._wandb import logged_in
from blockyard.errors import UserError
from blockyard.runs.folder import CONFIG, RUN

_ESCAPED = {sign: f"\\{sign}" for sign in r"\`*_[]#|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_ARM, _GROUP, _ID = "JobType", "Group", "ID"  # in W&B's words


@dataclass(frozen=True)
class _Where:
    """Whose runs the panels show: those of one group, or of these ids."""

    entity: str | None
    project: str
    group: str | None
    ids: tuple[str, ...] = ()


def workspace(comparison: Mapping[str, Any], *, outputs: str = "outputs") -> str:
    """Make the workspace of a comparison and say where it is.

    Raises UserError where the package or a login is missing, no run was sent to W&B, or W&B refuses.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise UserError("board --wandb needs the package wandb-workspaces: pip install 'blockyard[workspaces]'")
    if not logged_in():
        raise UserError(
            "board --wandb needs a login: run `wandb login`, or set WANDB_API_KEY; "
            "without one, `blockyard board` shows the same page here"
        )
    where = _where(comparison, Path(outputs))
    try:
        made = build(comparison, where, where.entity or _default_entity())
        made.save()
        return str(made.url)
    except UserError:
        raise
    except Exception as error:  # whatever W&B, or what it is built on, raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"W&B did not make the workspace: {reason}") from error


def build(comparison: Mapping[str, Any], where: _Where, entity: str) -> Any:
    """The workspace, not yet saved. No network is used."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    metric = str(comparison["metric"])
    validation = f"val/{metric.partition('/')[2] or metric}"
    arms = {"groupby": wr.Metric(_ARM), "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"}
    shown = list(dict.fromkeys([validation, "val/loss", "train/loss"]))
    final = [name for name in dict.fromkeys([metric, *comparison.get("metrics", ())]) if name.startswith("test/")]
    runs = ws.Metric(_GROUP) == where.group if where.group else ws.Metric(_ID).isin(list(where.ids))
    return ws.Workspace(
        entity=entity,
        project=where.project,
        name=str(comparison["title"]),
        sections=[
            ws.Section(
                name="Answer",
                is_open=True,
                panels=[
                    wr.MarkdownPanel(markdown=_words(comparison)),
                    wr.WeavePanelSummaryTable(table_name="comparison"),
                ],
            ),
            ws.Section(
                name="Arms",
                is_open=True,
                panels=[
                    wr.BarPlot(title=name, metrics=[wr.SummaryMetric(name)], orientation="h", **arms)
                    for name in final or [metric]
                ],
            ),
            ws.Section(
                name="Learning curves",
                is_open=True,
                panels=[
                    wr.LinePlot(title=f"{name} by {axis}", x=axis, y=[name], **arms)
                    for name in shown
                    for axis in ("Step", "samples", "seconds")
                ],
            ),
            ws.Section(
                name="Quality against cost",
                is_open=True,
                panels=[
                    wr.ScatterPlot(
                        title=f"{metric} by {cost}", x=wr.SummaryMetric(cost), y=wr.SummaryMetric(metric), log_x=True
                    )
                    for cost in ("flops_per_sample", "parameters", "step_seconds")
                ],
            ),
            ws.Section(name="What differs", panels=[wr.RunComparer(diff_only="split")]),
        ],
        runset_settings=ws.RunsetSettings(filters=ws.And(runs), groupby=[ws.Metric(_ARM)]),
    )


def _words(comparison: Mapping[str, Any]) -> str:
    expect = comparison.get("expect") or {}
    lines = [f"**{_plain(comparison['claim'])}**" if comparison.get("claim") else ""]
    lines += [_plain(comparison.get("answer") or "")]
    if expect.get("text"):
        lines += [f"expected {_plain(expect['text'])}: {expect.get('verdict')} ({_plain(expect.get('reason') or '')})"]
    lines += [f"- {_plain(warning)}" for warning in comparison.get("warnings") or ()]
    return "\n\n".join(line for line in lines if line)


def _plain(text: Any) -> str:
    """Text that Markdown and HTML leave as it is."""
    return "".join(_ESCAPED.get(sign, sign) for sign in str(text))


def _where(comparison: Mapping[str, Any], outputs: Path) -> _Where:
    """Where the runs were sent, by what they wrote down themselves."""
    found = []
    for name in dict.fromkeys(cell.get("run") for cell in comparison.get("cells") or () if cell.get("run")):
        try:
            sent = read_json(outputs / name / RUN).get("wandb") or {}
            logger = read_yaml(outputs / name / CONFIG).get("logger") or {}
        except (OSError, ValueError):
            continue
        if sent.get("id"):
            found.append((sent.get("entity"), sent.get("project"), logger.get("group"), sent["id"]))
    if not found:
        raise UserError(
            "none of these runs was logged to W&B: run them with logger=wandb, and `wandb sync` offline ones"
        )
    places = sorted({(str(entity or ""), str(project or "")) for entity, project, _, _ in found})
    if len(places) > 1:
        said = ", ".join("/".join(filter(None, place)) for place in places)
        raise UserError(f"these runs lie in {len(places)} projects of W&B ({said}); a workspace shows one")
    groups = {group for _, _, group, _ in found}
    return _Where(
        entity=found[0][0],
        project=found[0][1] or "blockyard",
        group=next(iter(groups)) if len(groups) == 1 else None,
        ids=tuple(run for *_, run in found),
    )


def _default_entity() -> str:
    import wandb

    entity = wandb.Api().default_entity
    if not entity:
        raise UserError("W&B names no default entity for this login; set logger.entity=NAME for the runs")
    return str(entity)
