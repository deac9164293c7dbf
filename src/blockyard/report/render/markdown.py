"""A comparison as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from blockyard.errors import printable
from blockyard.report.arms.changes import FEW_ARMS
from blockyard.report.load.arms import format_value
from blockyard.report.load.document import ComparisonDocument
from blockyard.report.render import columns

MAX_SETTINGS = 30
_WIDTH = 40  # characters of a value
_LEFT = ("arm", "from elsewhere", "ladder", "gap", "setting", "verdict", "Pareto", "simple baseline", "note")


def settings(data: ComparisonDocument) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row a choice or option that differs, with a column for each arm.

    A sweep has no rows, as the names of its arms tell their changes. Many arms have none either.
    """
    arms = data.arms
    header = ["setting", *(arm.name for arm in arms)]
    if data.question is not None or not 2 <= len(arms) <= FEW_ARMS:
        return header, []
    changed = {arm.name: arm.changes.config for arm in arms}
    keys = list(dict.fromkeys(key for config in changed.values() for key in config))
    rows = []
    for key in keys[:MAX_SETTINGS]:
        of_baseline = next(config[key][0] for config in changed.values() if key in config)
        values = [changed[arm.name].get(key, (None, of_baseline))[1] for arm in arms]
        rows.append([key, *map(_text, values)])
    if len(keys) > MAX_SETTINGS:
        rows.append([f"and {len(keys) - MAX_SETTINGS} more, see --html", *("" for _ in arms)])
    return header, rows


def _text(value: Any) -> str:
    text = "" if value is None else format_value(value)
    if len(text) <= _WIDTH:
        return text
    return f"{text[: _WIDTH - 3]}..."


def markdown(data: ComparisonDocument) -> str:
    """Return the tables and notes as Markdown that ends in a newline."""
    better = "more" if data.direction == "max" else "less"
    parts = [f"## {escape(data.title)}: {escape(data.metric)}, {better} is better"]
    head = [*columns.head_lines(data), f"answer: {data.answer}"]
    parts += ["  \n".join(escape(line) for line in head)]
    if data.better_baseline:
        parts += [f"**{escape(data.better_baseline)}**"]
    parts += [_table(*columns.quality(data)), "  \n".join(escape(note) for note in columns.notes(data))]
    tables = (columns.baselines(data), columns.externals(data), columns.ladders(data), columns.decisions(data))
    for header, rows in tables:
        if rows:
            parts.append(_table(header, rows))
    parts += [_table(*columns.costs(data)), "  \n".join(escape(note) for note in columns.cost_notes(data))]
    header, rows = settings(data)
    if rows:
        parts += ["### Settings that differ", _table(header, rows)]
    sections = {
        "Tuned on validation": columns.tuning_lines(data),
        "Importance": columns.importance_lines(data),
        "Effects": columns.effect_lines(data),
        "Warnings": data.warnings,
    }
    for title, lines in sections.items():
        if lines:
            parts += [f"### {title}", "\n".join(f"- {escape(line)}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return text on one line that no renderer takes for markup, and no terminal for its codes."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", printable(" ".join(str(text).split())))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    rule = [":--" if name in _LEFT else "--:" for name in header]
    return "\n".join(f"| {' | '.join(row)} |" for row in (lines[0], rule, *lines[1:]))
