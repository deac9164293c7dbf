"""The one way verbs print tables: fitted to a terminal, one line a row anywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED = 400  # columns; no row of ours is wider, so `blockyard list | grep` sees whole lines


def console() -> Console:
    """A console for plain words: no markup, so that a `[` in a name stays a `[`."""
    from rich.console import Console

    probe = Console()
    return Console(highlight=False, markup=False, width=None if probe.is_terminal else PIPED)


def table(title: str | None, *columns: str) -> Table:
    """A table without lines whose first column never wraps."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        made.add_column(column, no_wrap=place == 0, style="cyan" if place == 0 else None)
    return made
