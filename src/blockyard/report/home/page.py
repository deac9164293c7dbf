"""Render the home page: one HTML file, built as the page of a comparison is, with links to the folders beside it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from blockyard.atomic_files import write_text
from blockyard.report.home.content import home
from blockyard.report.page.document import content_policy, encode, joined_script, joined_style, link, read_part
from blockyard.report.page.thin import plain
from blockyard.runs.record import RunRecord

STYLES = ("style", "tables", "charts", "home")
SCRIPTS = ("dom", "format", "theme", "search", "home_state", "home_runs", "home_compare", "home")


def write_home(path: Path, root: Path, records: Sequence[RunRecord]) -> Path:
    """Write the home page of the runs `records` under `root` to `path`, atomically. Raises OSError."""
    write_text(path, render_home(home(root, records), root, path.parent))
    return path


def render_home(content: dict[str, Any], root: Path, folder: Path) -> str:
    """Return the page. folder: of its file, from which links to runs and sweeps start"""
    style, script = joined_style(STYLES), joined_script(SCRIPTS)
    runs = [
        {key: value for key, value in run.items() if key != "folder"} | {"link": link(run["folder"], folder)}
        for run in content["runs"]
    ]
    sweeps = [
        sweep | {"page": link(str(root / sweep["page"]), folder) if sweep["page"] else None}
        for sweep in content["sweeps"]
    ]
    return Template(read_part("home.html")).substitute(
        title=html.escape(content["title"]),
        policy=html.escape(content_policy(style, script)),
        style=style,
        script=script,
        data=encode(plain({**content, "runs": runs, "sweeps": sweeps})),
        plain=_without_script(content),
    )


def _without_script(content: dict[str, Any]) -> str:
    """Return the lists of sweeps and runs as HTML, for browsers with scripts disabled."""
    lines = [f"{sweep['name']}: {sweep['claim'] or ''} {sweep['verdict'] or ''}" for sweep in content["sweeps"]]
    lines += [f"{run['run']}: {run['state']}" for run in content["runs"]]
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)
