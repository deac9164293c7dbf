"""The rows of a table, checked: every one that cannot be used is named with its line and the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blockyard.data._pair_file import NAMES
from blockyard.data._table_columns import Rows
from blockyard.data._table_spec import LABEL
from blockyard.errors import UserError

if TYPE_CHECKING:
    from blockyard.data.table import Table

MOST_CLASSES = 1000


def checked_rows(table: Table) -> Rows:
    """Returns the rows that `table` reads. Raises UserError naming every row that cannot be used, with its line."""
    named_columns = table.named_columns
    kinds = dict.fromkeys((*table.columns, *table.target), "number") | {str(table.image): "stored"}
    rows = table.read(named_columns, kinds)
    needed = [name for key, name in named_columns.items() if not key.startswith(("data.columns", "data.target"))]
    problems = {f"no {name}": rows.blank(name) for name in needed}
    if table.target:
        gone = np.isnan(rows.numbers(table.target))
        problems[f"no {' nor '.join(table.target)}, which is the target"] = gone.all(1)
    if table.columns:
        problems["no value in any of data.columns"] = np.isnan(rows.numbers(table.columns)).all(1)
    if "data.split" in named_columns:
        valid = np.isin(np.array(rows.texts(table.split), dtype=object).astype(str), list(NAMES))
        problems[f"{table.split} is none of {', '.join(NAMES)}"] = ~valid & ~rows.blank(table.split)
    rows.refuse(problems)
    if "data.label" in named_columns:
        _check_labels(table, rows)
    return rows


def _check_labels(table: Table, rows: Rows) -> None:
    labels = rows.table[table.label or LABEL].unique().to_pylist()
    if len(labels) < 2:
        raise UserError(f"{table.path}: every row has the {table.label} {labels[0]!r}; a class needs another one")
    if len(labels) > MOST_CLASSES:
        raise UserError(
            f"data.label={table.label}: {table.path} has {len(labels):,} different ones, more than {MOST_CLASSES:,} "
            f"classes; for real values use data.target=[{table.label}]"
        )
