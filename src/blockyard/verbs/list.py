"""blockyard list [FAMILY ...] [--config-dir DIR]

Every choice of every family, or of the named ones, with one line and its source.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockyard import catalog
from blockyard.errors import UserError
from blockyard.verbs._words import read


def run(arguments: Sequence[str]) -> int:
    """Print the choices."""
    from rich.console import Console
    from rich.table import Table

    words = read(arguments, {})
    known = catalog.families()
    for family in words.overrides:
        if family not in known:
            raise UserError(f"{family}: there is no such family (families: {', '.join(known)})")
    console = Console(highlight=False, markup=False)
    for family in words.overrides or known:
        table = Table(title=family, title_justify="left", title_style="bold", box=None, pad_edge=False)
        table.add_column("choice", style="cyan", no_wrap=True)
        table.add_column("what it is")
        table.add_column("source", style="dim")
        for choice in catalog.choices(family, words.folders()).values():
            table.add_row(choice.name, choice.summary, choice.source)
        console.print(table)
        console.print()
    return 0
