"""Data sets of Hugging Face's library on the disk: a folder that `save_to_disk` wrote, or Parquet and Arrow files.

Source: Lhoest et al. 2021, Datasets: A Community Library for Natural Language Processing (arXiv 2109.02846)
Reference: datasets.load_from_disk

    datasets.load_dataset("imdb").save_to_disk("data/imdb")      once, where there is a network
    blockyard train data=hf data.path=data/imdb tokenizer=byte ...

Nothing is downloaded. Columns are named as in data=table; the splits of a DatasetDict are those of its names, and the
names of a ClassLabel are the classes, in its order. Rows stay on the disk, mapped into memory; of texts the token ids
are kept.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blockyard.contracts import Text
from blockyard.data.files.class_names import plain_number
from blockyard.data.files.native_check import STREAM, verify_all
from blockyard.data.files.split_names import SPLIT
from blockyard.data.files.table_rows import Kinds, TableRows, converted, joined
from blockyard.data.files.tables import FileRows, check_columns
from blockyard.data.table import Table
from blockyard.errors import UserError

if TYPE_CHECKING:
    import pyarrow

MARKS = ("dataset_info.json", "dataset_dict.json", "state.json")  # of a folder that `save_to_disk` wrote


@dataclass(kw_only=True, eq=False)
class HuggingFace(Table):
    """A table that the library `datasets` reads.

    Options:
        path: a folder of `save_to_disk`, or what data=table reads
    """

    path: Text = "data/hf"

    def missing(self) -> str | None:
        """Return a message that names the missing folder or library and the remedy, or None."""
        if self._saved:
            import importlib.util

            if importlib.util.find_spec("datasets") is None:
                return "data=hf reads folders of `save_to_disk` by the package datasets: pip install 'blockyard[hf]'"
            return None
        if self.files:
            return None
        path = Path(self.path).expanduser().absolute()
        return f"no data set in {path}; set data.path=FOLDER that datasets' save_to_disk wrote, or Parquet files"

    @property
    def _saved(self) -> bool:
        return any((Path(self.path).expanduser() / mark).is_file() for mark in MARKS)

    @property
    def read_files(self) -> list[Path]:
        """All files that `rows` depends on, with the files of a saved folder."""
        if self._saved:
            return sorted(path for path in Path(self.path).expanduser().rglob("*") if path.is_file())
        return self.files

    @cached_property
    def _parts(self) -> dict[str, Any]:
        """The data sets by the name of their split, "" for a single one. Raises UserError for a damaged folder."""
        import datasets

        folder = Path(self.path).expanduser()
        try:
            if files := sorted(path for path in folder.rglob("*.arrow") if path.is_file()):
                verify_all(files, STREAM)
            loaded = datasets.load_from_disk(str(folder))
        except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
            raise UserError(
                f"{self.path} cannot be read as a data set: {' '.join(str(error).split())[:300]}"
            ) from error
        parts = dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"": loaded}
        empty = [name for name, part in parts.items() if not len(part)]
        if empty:
            raise UserError(f"{self.path}: the data set {' and '.join(empty)} has no rows".replace("  ", " "))
        return parts

    @cached_property
    def names(self) -> list[str]:
        """The columns, and `split` where the data set has splits of its own."""
        if not self._saved:
            return super().names if self.files else []
        own = list(next(iter(self._parts.values())).column_names)
        if "" in self._parts or SPLIT in own:
            return own
        return [*own, SPLIT]

    def read(self, columns: dict[str, str], kinds: Kinds) -> TableRows:
        """Read the columns of all splits, one after the other."""
        if not self._saved:
            return super().read(columns, kinds)
        files = [Path(self.path).expanduser() / name for name in self._parts]
        parts = [self._file_rows(name, columns, file) for name, file in zip(self._parts, files, strict=True)]
        return joined(files, parts, [converted(*part, columns, kinds) for part in zip(files, parts, strict=True)])

    def _file_rows(self, name: str, columns: dict[str, str], file: Path) -> FileRows:
        import pyarrow as pa

        part = self._parts[name]
        own = dict.fromkeys(column for column in columns.values() if column in part.column_names)
        there = [*part.column_names, SPLIT] if SPLIT in self.names else part.column_names
        check_columns(file, there, columns)
        table: pyarrow.Table = part.select_columns(list(own)).with_format("arrow")[:]
        for column in own:
            labels = getattr(part.features[column], "names", None)
            if labels is not None and columns.get("data.label") == column:
                numbers = table[column].to_pylist()
                named = [labels[n] if n is not None and 0 <= n < len(labels) else None for n in numbers]
                table = table.set_column(table.column_names.index(column), column, pa.array(named, pa.string()))
        if columns.get("data.split") == SPLIT and SPLIT not in own:
            table = table.append_column(SPLIT, pa.array([name] * len(table), pa.string()))
        return FileRows(table, np.arange(1, 1 + len(table)), "row")

    def licence(self) -> str | None:
        """Return the licences that the data set declares, or None."""
        if not self._saved:
            return None
        licences = {part.info.license for part in self._parts.values()}
        return ", ".join(sorted(filter(None, licences))) or None

    def hub_name(self) -> str | None:
        """Return the repository that the files of the data set were downloaded from, where it was a single one."""
        if not self._saved:
            return None
        names = set()
        for part in self._parts.values():
            for file in part.info.download_checksums or ():
                match = re.match(r"hf://datasets/([\w.-]+(?:/[\w.-]+)?)@", file)
                names.add(match[1] if match else None)
        return names.pop() if len(names) == 1 else None

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The occurring names of a ClassLabel, in its order; without a ClassLabel the labels, sorted."""
        names = super().class_names
        if not self._saved or not names or not isinstance(self.label, str):
            return names
        labels = getattr(next(iter(self._parts.values())).features[self.label], "names", None)
        if labels is None:
            return names
        order = {name: number for number, label in enumerate(labels) for name in (label, plain_number(label))}
        return tuple(sorted(names, key=order.__getitem__))
