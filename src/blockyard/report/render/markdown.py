"""A comparison as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from blockyard.report.render import columns
from blockyard.report.render.settings import settings

_LEFT = ("arm", "setting", "verdict", "Pareto", "simple baseline", "note")


def markdown(data: dict[str, Any]) -> str:
    """Return the tables and notes as Markdown that ends in a newline. data: `Comparison.as_dict()`."""
    better = "more" if data["direction"] == "max" else "less"
    parts = [f"## {escape(data['title'])}: {escape(data['metric'])}, {better} is better"]
    parts += ["  \n".join(escape(line) for line in columns.head_lines(data))]
    parts += [_table(*columns.quality(data)), "  \n".join(escape(note) for note in columns.notes(data))]
    header, rows = columns.baselines(data)
    parts += [_table(header, rows)] if rows else []
    parts += [_table(*columns.costs(data)), "  \n".join(escape(note) for note in columns.cost_notes(data))]
    header, rows = settings(data)
    parts += ["### Settings that differ", _table(header, rows)] if rows else []
    sections = {
        "Tuned on validation": columns.tuning_lines(data),
        "Effects": columns.effect_lines(data),
        "Warnings": data["warnings"],
    }
    for title, lines in sections.items():
        if lines:
            parts += [f"### {title}", "\n".join(f"- {escape(line)}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Return text on one line that no renderer takes for markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", " ".join(str(text).split()))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    rule = [":--" if name in _LEFT else "--:" for name in header]
    return "\n".join(f"| {' | '.join(row)} |" for row in (lines[0], rule, *lines[1:]))
