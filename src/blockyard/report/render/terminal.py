"""A comparison on a terminal: tables, the verdicts as sentences, warnings and the answer."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from blockyard.report.arms.missing import FAILED, NO_VALUE, NOT_DONE, REFUSED
from blockyard.report.load.document import ComparisonDocument
from blockyard.report.render import columns
from blockyard.report.render.markdown import settings
from blockyard.report.stats.verdict import (
    BASELINE,
    BETTER,
    EQUIVALENT,
    NOT_ASKED,
    NOT_BETTER,
    NOT_WORSE,
    TOO_FEW,
    UNDECIDED,
    WORSE,
)
from blockyard.terminal import console as make_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_STYLES = {
    EQUIVALENT: "yellow",
    UNDECIDED: "dim",
    BETTER: "green",
    WORSE: "red",
    "no difference": "yellow",
    TOO_FEW: "dim",
    NOT_BETTER: "yellow",
    NOT_WORSE: "yellow",
    NOT_ASKED: "dim",
    BASELINE: "bold",
}
_STYLES |= {FAILED: "red", REFUSED: "magenta", NO_VALUE: "magenta", NOT_DONE: "dim"}
_MAX_EXPLAINED = 12  # arms; of more, only those that differ or have no result are explained
_LIKE = 4  # warnings that differ in the arm and in numbers alone, of which one is printed
_GAP = 2  # columns of a terminal between those of a table
_NAME_WIDTH = 28  # columns of a terminal for an arm's name


def show(data: ComparisonDocument, console: Console | None = None) -> None:
    """Print a comparison."""
    screen = console or make_console()
    better = "more" if data.direction == "max" else "less"
    screen.print(f"{data.title}: {data.metric}, {better} is better", style="bold")
    for line in columns.head_lines(data):
        screen.print(line)
    screen.print()
    screen.print(_table(*columns.quality(data), screen))
    for note in columns.notes(data):
        screen.print(note, style="dim")
    tables = (columns.baselines(data), columns.externals(data), columns.ladders(data), columns.decisions(data))
    for header, rows in tables:
        if rows:
            screen.print()
            screen.print(_table(header, rows, screen))
    header, rows = columns.costs(data)
    if len(header) > 2:
        screen.print()
        screen.print(_table(header, rows, screen))
        for note in columns.cost_notes(data):
            screen.print(note, style="dim")
    header, rows = settings(data)
    if rows:
        screen.print()
        screen.print("settings that differ", style="bold")
        screen.print(_table(header, rows, screen))
    _list(screen, "tuned on validation", columns.tuning_lines(data))
    _list(screen, "importance: what each option explains alone", columns.importance_lines(data))
    _list(screen, "effects", columns.effect_lines(data))
    _list(screen, "verdicts", _explanations(data))
    _list(screen, "clauses", columns.clause_lines(data))
    _list(screen, "notes", data.provenance.notes)
    _list(screen, "warnings", _warning_lines(data))
    screen.print()
    screen.print(data.answer, style="bold")
    if data.better_baseline:
        screen.print(data.better_baseline, style="bold red")


def _table(header: list[str], rows: list[list[str]], screen: Console) -> Table:
    """Return a table. Where it is wider than a terminal, cells break before parentheses, headers at spaces."""
    from rich.table import Table
    from rich.text import Text

    width = sum(max(map(len, column)) + _GAP for column in zip(header, *rows, strict=True))
    if screen.is_terminal and width > screen.width:
        header = [name.replace(" ", "\n") for name in header]
        rows = [[cell.replace(" (", "\n(") for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for index, name in enumerate(header):
        if index == 0:
            # Names wrap on a terminal; when piped, a row stays on one line.
            table.add_column(name, overflow="fold", max_width=_NAME_WIDTH if screen.is_terminal else None, style="cyan")
        elif name in ("verdict", "Pareto", "note"):
            table.add_column(name, justify="left", overflow="fold")
        else:
            table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def _explanations(data: ComparisonDocument) -> list[str]:
    arms = [arm for arm in data.arms if arm.verdict != BASELINE]
    explained = arms
    if len(arms) > _MAX_EXPLAINED:
        explained = [arm for arm in arms if arm.verdict in (BETTER, WORSE, FAILED, REFUSED, NO_VALUE)]
    lines = [f"{arm.name}: {arm.words}" for arm in explained[: 2 * _MAX_EXPLAINED]]
    rest = len(arms) - len(lines)
    if rest:
        lines.append(f"and {rest} more arms")
    return lines


def _warning_lines(data: ComparisonDocument) -> list[str]:
    """Return a line for each warning, or for each kind of them where several arms have one."""
    lines = []
    for group in columns.warning_groups(data):
        if len(group) < _LIKE:
            lines += group
        else:
            lines.append(f"{group[0]} (and {len(group) - 1} more like this, see --html)")
    return lines


def _list(screen: Console, title: str, lines: list[str]) -> None:
    if lines:
        screen.print()
        screen.print(title, style="bold")
        for line in lines:
            indented = f"  {line}"
            if screen.is_terminal:
                indented = textwrap.fill(indented, screen.width, subsequent_indent="    ", break_on_hyphens=False)
            screen.print(indented)
