"""A comparison on a terminal: two tables, the verdicts in words, and what to be careful about."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from blockyard.report.render import columns
from blockyard.terminal import console as make_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_STYLES = {"better": "green", "worse": "red", "no difference": "yellow", "too few seeds": "dim", "baseline": "bold"}
_STYLES |= {"failed": "red", "refused": "magenta", "no figure": "magenta", "not done yet": "dim"}
_WORDS = 12  # arms; of more, only those that differ are told in words
_ARM = 28  # columns of a terminal for an arm's name


def show(data: dict[str, Any], console: Console | None = None) -> None:
    """Print what `Comparison.as_dict()` gives."""
    screen = console or make_console()
    way = "more" if data["direction"] == "max" else "less"
    screen.print(f"{data['title']}: {data['metric']}, {way} is better", style="bold")
    for line in columns.head_lines(data)[:-1]:
        screen.print(line)
    screen.print()
    heads, rows = columns.quality(data)
    screen.print(_table(heads, rows, screen))
    for note in columns.notes(data):
        screen.print(note, style="dim")
    heads, rows = columns.costs(data)
    if len(heads) > 2:
        screen.print()
        screen.print(_table(heads, rows, screen))
        for note in columns.cost_notes(data):
            screen.print(note, style="dim")
    _list(screen, "tuned on validation", columns.tuning_lines(data))
    _list(screen, "effects", columns.effect_lines(data))
    _list(screen, "verdicts", _words(data))
    _list(screen, "notes", data["provenance"].get("notes") or [])
    _list(screen, "be careful", data["warnings"])
    screen.print()
    screen.print(data["answer"], style="bold")


def _table(heads: list[str], rows: list[list[str]], screen: Console) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, head in enumerate(heads):
        if place == 0:
            # Names wrap on a terminal; anywhere else a row stays one line.
            made.add_column(head, overflow="fold", max_width=_ARM if screen.is_terminal else None, style="cyan")
        else:
            made.add_column(head, justify="left" if head in ("verdict", "Pareto") else "right", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return made


def _words(data: dict[str, Any]) -> list[str]:
    arms = [arm for arm in data["arms"] if arm["verdict"] != "baseline"]
    kinds = ("better", "worse", "failed", "refused", "no figure")
    told = arms if len(arms) <= _WORDS else [arm for arm in arms if arm["verdict"] in kinds]
    lines = [f"{arm['name']}: {arm['words']}" for arm in told[: 2 * _WORDS]]
    left = len(arms) - len(lines)
    return [*lines, f"and {left} more arms"] if left else lines


def _list(screen: Console, title: str, lines: list[str]) -> None:
    if lines:
        screen.print()
        screen.print(title, style="bold")
        for line in lines:
            screen.print(_indented(line, screen))


def _indented(line: str, screen: Console) -> str:
    if not screen.is_terminal:
        return f"  {line}"
    return textwrap.fill(line, screen.width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
