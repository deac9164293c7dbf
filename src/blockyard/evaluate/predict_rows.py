"""New rows of tables and arrays as a run reads them: columns of numbers, pairs of texts, and the rows of an array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch, TextTokenizer
from blockyard.data.files.arrays import KINDS, read_array
from blockyard.data.files.table_rows import read_rows
from blockyard.data.files.tables import kind_of
from blockyard.data.rows.texts import join_ids
from blockyard.data.splits.arrays import channels_first
from blockyard.errors import UserError, shortened
from blockyard.runs.load import Loaded

BATCH = 64  # inputs in a forward pass

Inputs = tuple[list[str], Iterator[Batch]]


def is_array(text: str) -> bool:
    """Whether a word of the command line names an .npz or .npy file."""
    return Path(text).suffix in KINDS


def array_rows(loaded: Loaded, texts: Sequence[str], split: Any) -> Inputs:
    """Returns the rows of arrays by file and number, and batches of them.

    split: one of the run's, which knows how values are standardized. Raises UserError for rows of another shape.
    """
    spec, names, parts = loaded.data.spec, [], []
    for text in texts:
        path = _file(text)
        values = read_array(path, str(getattr(loaded.data, "inputs", "x")), "the inputs of the run: data.inputs")
        rows = torch.from_numpy(np.ascontiguousarray(values))
        if spec.modality == "image":
            last = rows.ndim == 4 and tuple(rows.shape[1:]) != spec.shape
            rows = channels_first(rows, last=last)
        if tuple(rows.shape[1:]) != spec.shape:
            raise UserError(f"{path}: rows of shape {tuple(values.shape[1:])}; {loaded.folder.name} reads {spec.shape}")
        names += [f"{path}, row {number}" for number in range(len(rows))]
        parts += [_inputs(rows, spec.modality, split)]
    return names, (Batch(chunk) for part in parts for chunk in part.split(BATCH))


def _inputs(rows: Tensor, modality: str, split: Any) -> Tensor:
    if modality == "image":
        prepared: Tensor = split.preprocess(rows, torch.arange(len(rows)), None)
        return prepared
    scale = getattr(split, "scale", None)
    return rows.long() if scale is None else ((rows.double() - scale[0]) / scale[1]).float()


def number_rows(loaded: Loaded, texts: Sequence[str], split: Any) -> Inputs:
    """Returns the rows of tables by file and line, and batches of their columns of numbers. split: as above."""
    data: Any = loaded.data
    columns = tuple(getattr(data, "columns", ()))
    if not columns:
        raise UserError(f"{loaded.folder.name} reads vectors that no table names; give an .npz or .npy file")
    columns_by_key = {f"data.columns[{number}]": name for number, name in enumerate(columns)}
    rows = read_rows([_file(text) for text in texts], columns_by_key, dict.fromkeys(columns, "number"))
    mean, std = split.scale
    values = ((torch.from_numpy(rows.numbers(columns)) - mean) / std).float()
    return [rows.where(row) for row in range(len(rows))], (Batch(chunk) for chunk in values.split(BATCH))


def pair_rows(loaded: Loaded, texts: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """Returns both texts of each row of tables, and their token ids as the run joins them."""
    data: Any = loaded.data
    tokenizer = loaded.tokenizer
    assert isinstance(tokenizer, TextTokenizer)
    if any(kind_of(Path(text)) is None for text in texts):
        raise UserError(
            f"{loaded.folder.name} reads two texts an input; give a table with the columns {' and '.join(data.texts)}"
        )
    rows = read_rows(
        [_file(text) for text in texts], dict(zip(("data.text", "data.pair"), data.texts, strict=True)), {}
    )
    rows.refuse({f"no {name}": rows.blank(name) for name in data.texts})
    pairs = list(zip(*(rows.texts(name) for name in data.texts), strict=True))
    start = tokenizer.spec(data.spec).start
    ids = [join_ids([tokenizer.encode(text) for text in pair], start, data.context) for pair in pairs]
    return [" | ".join(pair) for pair in pairs], ids


def _file(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise UserError(f"no file {shortened(text)}")
    return path
