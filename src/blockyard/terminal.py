"""The one way verbs print tables: fitted to a terminal, one line a row anywhere else."""

from __future__ import annotations

import re
import sys
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED = 1000  # columns; no row of ours is wider, so `blockyard list | grep` sees whole lines


def console() -> Console:
    """A console for plain words: no markup, so that a `[` in a name stays a `[`."""
    from rich.console import Console

    terminal = Console().is_terminal
    if terminal:
        return Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, width=PIPED, file=cast("IO[str]", Trimmed()))


class Trimmed:
    """Standard output without the spaces that fill a table's lines."""

    def write(self, text: str) -> int:
        """Called with whole lines."""
        return sys.stdout.write(re.sub(r" +$", "", text, flags=re.M))

    def flush(self) -> None:
        """As standard output does."""
        sys.stdout.flush()


def table(title: str | None, *columns: str) -> Table:
    """A table without lines whose first column never wraps."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, column in enumerate(columns):
        made.add_column(column, no_wrap=place == 0, style="cyan" if place == 0 else None)
    return made
