"""Tables of every command: fitted to a terminal, one line a row in a pipe, HTML in a notebook."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import IO, TYPE_CHECKING, cast

from blockyard.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NOTEBOOK_ROWS = 40  # of a table in a notebook; of more, the first ones and their number are shown
PIPED = 1000  # columns; no row is wider, so `blockyard list | grep` sees whole lines


def console() -> Console:
    """A console for plain text: no markup, so that a `[` in a name stays a `[`, and no control characters."""
    from rich.console import Console

    terminal = Console().is_terminal
    if terminal:
        return _plain()(highlight=False, markup=False)
    return _plain()(highlight=False, markup=False, width=PIPED, file=cast("IO[str]", Trimmed()))


@cache
def _plain() -> type[Console]:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Plain(Console):
        """A console whose texts, which may come from a stranger, cannot act on the terminal."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return Plain


def notebook_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[object]], notes: Iterable[str | None] = ()
) -> str:
    """Return a table as HTML for `_repr_html_` of a notebook, without scripts and styles. All text is escaped.

    notes: paragraphs below the table; None and empty ones are left out
    """

    def cells(tag: str, values: Iterable[object]) -> str:
        elements = []
        for value in values:
            text = ""
            if value is not None:
                text = html.escape(printable(str(value)))
            elements.append(f"<{tag}>{text}</{tag}>")
        return "".join(elements)

    lines = [f"<tr>{cells('td', row)}</tr>" for row in rows[:NOTEBOOK_ROWS]]
    table = f"<table><thead><tr>{cells('th', header)}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    paragraphs = [*notes]
    if len(rows) > NOTEBOOK_ROWS:
        paragraphs.insert(0, f"and {len(rows) - NOTEBOOK_ROWS} more")
    below = "".join(cells("p", [text]) for text in paragraphs if text)
    return f"<div><strong>{html.escape(printable(title))}</strong>{table if rows else ''}{below}</div>"


class Trimmed:
    """Standard output without the spaces that pad a table's lines."""

    def write(self, text: str) -> int:
        """Write whole lines."""
        return sys.stdout.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def flush(self) -> None:
        """Flush standard output."""
        sys.stdout.flush()


def table(title: str | None, *columns: str) -> Table:
    """A table without lines whose first column never wraps; a word that is longer than its column is folded."""
    from rich.table import Table

    result = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for index, column in enumerate(columns):
        style = "cyan" if index == 0 else None
        result.add_column(column, no_wrap=index == 0, overflow="fold", style=style)
    return result
