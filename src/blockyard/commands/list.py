"""blockyard list [FAMILY ...] [--config-dir DIR]

Every choice of every family, or of the named ones, with one line and its source.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockyard.commands._args import read
from blockyard.config import catalog
from blockyard.errors import UserError
from blockyard.terminal import console, table


def run(arguments: Sequence[str]) -> int:
    """Print the choices."""
    words = read(arguments, {})
    known = catalog.groups()
    for family in words.overrides:
        if family not in known:
            raise UserError(f"{family}: there is no such family (families: {', '.join(known)})")
    screen = console()
    for family in words.overrides or known:
        rows = table(family, "choice", "what it is", "source")
        for choice in catalog.choices(family, words.folders()).values():
            rows.add_row(choice.name, choice.summary, choice.source)
        screen.print(rows)
        screen.print()
    return 0
