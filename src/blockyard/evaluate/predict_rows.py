"""New rows of files as a run reads them: columns of numbers, pairs of texts, pictures with a text, graphs, series, and
the rows of an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from blockyard.atomic_files import is_regular
from blockyard.contracts import Batch, GraphTokenizer, TextTokenizer
from blockyard.data.files.arrays import KINDS, Kind, check_inputs, kind_of, read_array
from blockyard.data.files.images import levels_to_floats
from blockyard.data.files.molecules import read_unlabelled
from blockyard.data.files.series_records import read_ts
from blockyard.data.files.table_rows import read_rows
from blockyard.data.files.tables import kind_of as kind_of_table
from blockyard.data.rows.images import ImageColumn
from blockyard.data.rows.texts import join_ids
from blockyard.data.splits.arrays import channels_first
from blockyard.data.splits.graphs import GraphData
from blockyard.errors import UserError, shortened
from blockyard.runs.load import Loaded

BATCH = 64  # inputs in a forward pass

Inputs = tuple[list[str], Iterator[Batch]]


def is_array(text: str) -> bool:
    """Whether a word of the command line names an .npz or .npy file."""
    return Path(text).suffix in KINDS


def array_rows(loaded: Loaded, texts: Sequence[str], split: Any) -> Inputs:
    """Return the rows of arrays by file and number, and batches of them.

    split: one of the run's, which knows how values are standardized. Raises UserError for rows of another shape.
    """
    spec, names, parts = loaded.data.spec, [], []
    for text in texts:
        path = _file(text)
        name = str(getattr(loaded.data, "inputs", "x"))
        values = read_array(path, name, "the inputs of the run: data.inputs")
        if spec.modality in get_args(Kind):
            kind: Any = spec.modality
            check_inputs(values, kind, spec.vocabulary, path, name)
            kind_of(values, kind, f"{path}, {name}")
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
    """Return the rows of tables by file and line, and batches of their columns of numbers. split: as above."""
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
    """Return both texts of each row of tables, and their token ids as the run joins them."""
    data: Any = loaded.data
    tokenizer = loaded.tokenizer
    assert isinstance(tokenizer, TextTokenizer)
    if any(kind_of_table(Path(text)) is None for text in texts):
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


def picture_rows(loaded: Loaded, texts: Sequence[str]) -> Inputs:
    """Return the rows of tables with an image and a text each, and batches of them.

    The columns are those of the run's data, or `image` and `text`; relative paths start from the table's folder.
    """
    data: Any = loaded.data
    tokenizer, source = loaded.tokenizer, loaded.data.spec.source
    assert isinstance(tokenizer, TextTokenizer)
    assert source is not None
    text = getattr(data, "text", None) or "text"
    name = getattr(data, "image", None) or "image"
    if any(kind_of_table(Path(each)) is None for each in texts):
        raise UserError(
            f"{loaded.folder.name} reads a picture and a text together; give a table with the columns {name} and {text}"
        )
    rows = read_rows([_file(each) for each in texts], {"data.image": name, "data.text": text}, {name: "stored"})
    rows.refuse({f"no {column}": rows.blank(column) for column in (name, text)})
    channels, size, _ = source.shape
    images = ImageColumn(name, getattr(data, "root", None), channels, size, workers=1).of(rows)
    most = loaded.model.ctx.tokens.max_len
    token_ids = [tokenizer.encode(each)[:most] for each in rows.texts(text)]
    rows.refuse({f"no token is left of the {text}": np.array([not ids for ids in token_ids])})

    def batches() -> Iterator[Batch]:
        for start in range(0, len(token_ids), BATCH):
            some = token_ids[start : start + BATCH]
            pixels = levels_to_floats(images.decode_all(range(start, start + len(some))))
            yield replace(padded(some), source=pixels)

    return [f"{rows.where(row)}: {each}" for row, each in enumerate(rows.texts(text))], batches()


def padded(token_ids: Sequence[Sequence[int]]) -> Batch:
    """Return sequences of token ids as a batch, padded on the right."""
    lengths = torch.tensor([len(ids) for ids in token_ids])
    inputs = torch.zeros(len(token_ids), int(lengths.max()), dtype=torch.int64)
    for row, ids in zip(inputs, token_ids, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return Batch(inputs, lengths=lengths)


def graph_rows(loaded: Loaded, tokenizer: GraphTokenizer, texts: Sequence[str]) -> Inputs:
    """Return the graphs of files by file and line, and batches of them. Targets in the files are not read.

    Raises UserError for graphs with other columns than those of training.
    """
    data = loaded.data
    assert isinstance(data, GraphData)
    most, columns = data.size()
    connected = getattr(data, "disconnected", "keep") == "refuse"
    kinds = tokenizer.state().get("edges") or [[]]
    names, graphs = [], []
    for text in texts:
        path = _file(text)
        for line in read_unlabelled(path, columns, len(kinds[0]), most, connected):
            names.append(f"{path}, line {line.number}")
            graphs.append(line.graph)
    split = data.encoded(graphs, tokenizer)
    return names, (replace(split.batch(order, None), target=None) for order in torch.arange(len(graphs)).split(BATCH))


def series_rows(loaded: Loaded, texts: Sequence[str], split: Any) -> Inputs:
    """Return the series of .ts files by file and number, and batches of them. split: one of the run's, whose `scale`
    (mean, std) standardizes channels. Raises UserError for series of other lengths or channels.
    """
    names: list[str] = []
    series: list[Tensor] = []
    spec = loaded.data.spec
    mean, std = split.scale
    for text in texts:
        path = _file(text)
        if path.suffix != ".ts":
            raise UserError(f"{path}: new series are read from .ts files, or from rows of arrays (.npz, .npy)")
        for number, values in enumerate(read_ts(path).series, start=1):
            steps, channels = values.shape
            if channels != spec.shape[1] or steps > spec.shape[0] or (steps < spec.shape[0] and not spec.variable):
                most = "up to " if spec.variable else ""
                raise UserError(
                    f"{path}, series {number}: {steps} steps of {channels} channels; {loaded.folder.name} reads "
                    f"{most}{spec.shape[0]} of {spec.shape[1]}"
                )
            names.append(f"{path}, series {number}")
            series.append(((values - mean) / std).float())

    def batches() -> Iterator[Batch]:
        for start in range(0, len(series), BATCH):
            some = series[start : start + BATCH]
            lengths = torch.tensor([len(values) for values in some]) if spec.variable else None
            yield Batch(pad_sequence(some, batch_first=True, padding_value=float("nan")), lengths=lengths)

    return names, batches()


def _file(text: str) -> Path:
    path = Path(text).expanduser()
    if not is_regular(path):
        raise UserError(f"no file {shortened(text)}")
    return path
