"""What the options of a table say that a model reads of its rows, and which columns that takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from blockyard.contracts import DataSpec
from blockyard.data._split import check_fractions

if TYPE_CHECKING:
    from blockyard.data.table import Table

TEXT, LABEL, SPLIT = "text", "label", "split"

Reads = Literal["text", "pair", "image", "caption", "question", "numbers"]


def check_options(table: Table) -> None:
    """Raises ValueError for options that exclude each other."""
    check_fractions(table.validation_fraction, table.test_fraction)
    if table.columns and (table.image or table.pair):
        raise ValueError("data.columns is for numbers alone; use data.image=null and data.pair=null with it")
    if table.image and table.pair:
        raise ValueError(f"data.pair={table.pair} is a second text; with data.image, use data.pair=null")
    if table.target and table.label not in (None, LABEL):
        raise ValueError(f"data.target and data.label={table.label} both say what is predicted; one must be null")


def reads_of(table: Table) -> Reads:
    """Returns what a model reads of a row."""
    if table.columns:
        return "numbers"
    if table.image is None:
        return "text" if table.pair is None else "pair"
    if not _uses(table, table.text, TEXT):
        return "image"
    return "question" if table.target or _uses(table, table.label, LABEL) else "caption"


def _uses(table: Table, column: str | None, default: str) -> bool:
    """Whether a column is read: one of the default name is where the file has it."""
    return column is not None and (column != default or default in table.names)


def spec_of(table: Table) -> DataSpec:
    """Returns what a row is; without the file, the number of classes is not known."""
    reads, image = table.reads, DataSpec("image", (table.channels, table.size, table.size), levels=256)
    if reads in ("text", "pair"):
        data_spec = DataSpec("text", (table.context,), variable=True, joined=reads == "pair")
    elif reads in ("caption", "question"):
        data_spec = DataSpec("text", (table.context,), variable=True, source=replace(image, levels=None))
    else:
        data_spec = image if reads == "image" else DataSpec("vector", (len(table.columns),))
    if reads == "caption":
        return data_spec
    there = table.missing() is None
    data_spec = replace(data_spec, slices=table.slice_names if there else ())
    if table.target:
        return replace(data_spec, target="values", values=(len(table.target),))
    names = table.class_names if there else ()
    return replace(data_spec, target="class", classes=len(names) or None, class_names=names)


def named_columns(table: Table) -> dict[str, str]:
    """Returns the columns that are read, by the option that names them."""
    columns = dict(zip(("data.text", "data.pair"), table.texts, strict=False))
    columns |= {} if table.image is None else {"data.image": table.image}
    columns |= {f"data.{key}[{n}]": name for key in ("columns", "target") for n, name in enumerate(getattr(table, key))}
    if not table.target and table.reads != "caption":
        columns["data.label"] = table.label or LABEL
    if table.split != SPLIT or SPLIT in table.names:
        columns["data.split"] = table.split
    return columns | {f"data.{key}": name for key in ("group", "slices") if (name := getattr(table, key)) is not None}
