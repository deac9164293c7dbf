"""New inputs of a trained run that are read alike for all data of a modality, and rows of arrays.

texts                texts, files with one in each line, tables (.csv, .tsv, .jsonl, also .gz)
images               image files, folders of them
sounds               sound files, folders of them
a text and an image  tables with a column of paths and one of texts
rows of arrays       .npz, .npy

Other files are read by the data module that is trained on them (`DataModule.read_new`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from blockyard.atomic_files import is_regular
from blockyard.contracts import DataModule, DataSpec, InputReader, NewInputs, SourceFiles, TextTokenizer
from blockyard.data.files.arrays import KINDS, Kind, check_inputs, kind_of, read_array
from blockyard.data.files.file_names import data_files, new_file
from blockyard.data.files.images import SUFFIXES, decode_image
from blockyard.data.files.sounds import SUFFIXES as SOUND_SUFFIXES
from blockyard.data.files.table_rows import read_rows
from blockyard.data.files.tables import check_rows
from blockyard.data.files.tables import kind_of as kind_of_table
from blockyard.data.rows.images import ImageColumn
from blockyard.data.rows.questions import QuestionRows
from blockyard.data.splits.arrays import channels_first
from blockyard.data.splits.columns import ColumnSplit, Ragged
from blockyard.data.splits.images import ImageFiles, LazyImageSplit
from blockyard.errors import UserError, fold, shortened

log = logging.getLogger("blockyard")

LEVELS = 256  # of an image file as it is read


@dataclass(frozen=True, kw_only=True)
class ModalityReader(InputReader):
    """Reads new inputs of a run by the modality of its data."""

    data: DataModule

    @property
    def spec(self) -> DataSpec:
        """The data that the inputs belong to, or its source."""
        spec = self.data.spec.source if self.source else self.data.spec
        assert spec is not None
        return spec

    def read(self, inputs: Sequence[str]) -> NewInputs:
        """Return texts, images, sounds, or texts with an image each. Raises UserError for data of another kind."""
        spec = self.spec
        if spec.source is not None:
            return self._texts_with_images(inputs, spec, spec.source)
        if spec.modality == "image":
            if self.source:
                return self._source_files(inputs, SUFFIXES, "image")
            return self._images(inputs)
        if spec.modality == "audio" and isinstance(self.data, SourceFiles):
            return self._source_files(inputs, SOUND_SUFFIXES, "sound")
        if spec.modality == "text" and isinstance(self.tokenizer, TextTokenizer) and not spec.joined:
            return self._texts(inputs, self.tokenizer)
        if spec.modality == "vector":
            raise UserError(f"{self.run} reads vectors that no table names; give an .npz or .npy file")
        raise UserError(
            f"{self.run} was trained on {spec.things}, which no file of new inputs holds; new inputs are texts, "
            "images, sounds, graphs, series with classes, tables and arrays (.npz, .npy)"
        )

    def _texts(self, inputs: Sequence[str], tokenizer: TextTokenizer) -> NewInputs:
        texts = texts_of(self.data, inputs, self.column)
        token_ids = [tokenizer.encode(text) for text in texts]
        most = self.max_len
        long = sum(len(ids) > most for ids in token_ids)
        if long:
            log.warning(
                "%d of %d texts have more than %d tokens; the model reads their beginning", long, len(texts), most
            )
        empty = [str(number) for number, ids in enumerate(token_ids, start=1) if not ids]
        if empty:
            raise UserError(f"input {fold(empty)}: no token is left of the text; leave it out")
        return NewInputs(texts, ColumnSplit(Ragged.of([ids[:most] for ids in token_ids])))

    def _texts_with_images(self, inputs: Sequence[str], spec: DataSpec, source: DataSpec) -> NewInputs:
        if (spec.modality, source.modality) != ("text", "image"):
            raise UserError(
                f"{self.run} reads {spec.things} together with {source.things}, which no table holds; use split=test"
            )
        channels, size, _ = source.shape
        text = getattr(self.data, "text", None) or "text"
        rows = QuestionRows(text, ImageColumn("image", None, channels, size, workers=1), self.max_len)
        return rows.read_new(inputs, self)

    def _images(self, inputs: Sequence[str]) -> NewInputs:
        files = [file for path in inputs for file in input_files(Path(path), SUFFIXES, "image")]
        split = self.test()
        preprocess = getattr(split, "preprocess", None)
        if preprocess is None:
            raise UserError(f"{self.run}: {type(split).__name__} does not say how images become inputs")
        channels, height, width = self.spec.shape
        levels = self.spec.levels or LEVELS
        if height != width:
            raise UserError(f"{self.run} reads images of {height} x {width}; predict resizes to squares only")

        def decode(file: Path) -> Tensor:
            image = decode_image(file, channels=channels, size=height)
            if levels == LEVELS:
                return image
            # Data of fewer gray levels, such as the 17 of the digits, is stored as it is.
            return (image.double() * (levels - 1) / (LEVELS - 1)).round().to(torch.uint8)

        images = ImageFiles(files, torch.zeros(len(files)), decode, workers=1)
        return NewInputs([str(file) for file in files], LazyImageSplit(images, preprocess))

    def _source_files(self, inputs: Sequence[str], suffixes: Collection[str], thing: str) -> NewInputs:
        if not isinstance(self.data, SourceFiles):
            raise UserError(f"{self.run}: {type(self.data).__name__} does not say how {thing}s become inputs")
        names = [str(file) for path in inputs for file in input_files(Path(path).expanduser(), suffixes, thing)]
        return NewInputs(names, ColumnSplit(FileColumn(names, self.data.read_source)))

    def arrays(self, inputs: Sequence[str]) -> NewInputs:
        """Return the rows of arrays by file and number. Raises UserError for rows of another shape."""
        spec, split = self.spec, self.test()
        names, parts = [], []
        for path in map(new_file, inputs):
            name = str(getattr(self.data, "inputs", "x"))
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
                raise UserError(f"{path}: rows of shape {tuple(values.shape[1:])}; {self.run} reads {spec.shape}")
            names += [f"{path}, row {number}" for number in range(len(rows))]
            parts.append(_prepared(rows, spec.modality, split))
        return NewInputs(names, ColumnSplit(torch.cat(parts)))


def is_array(text: str) -> bool:
    """Return whether an argument of the command line names an .npz or .npy file."""
    return Path(text).suffix in KINDS


def _prepared(rows: Tensor, modality: str, split: Any) -> Tensor:
    """Return rows of an array as the model reads them: token ids, or values standardized as the split's are."""
    if modality == "image":
        pixels: Tensor = split.preprocess(rows, torch.arange(len(rows)), None)
        return pixels
    scale = getattr(split, "scale", None)
    if scale is None:
        return rows.long()
    return ((rows.double() - scale[0]) / scale[1]).float()


@dataclass(frozen=True)
class FileColumn:
    """Sources that are read when a batch takes them. read: returns a batch of one."""

    files: Sequence[str]
    read: Callable[[str], Tensor]

    def __len__(self) -> int:
        return len(self.files)

    def take(self, order: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sources `order` (B,), padded with zeros, and their lengths (B,)."""
        sources = [self.read(self.files[number])[0] for number in order.tolist()]
        lengths = torch.tensor([len(source) for source in sources])
        return pad_sequence(sources, batch_first=True), lengths


def texts_of(data: DataModule, inputs: Sequence[str], column: str | None) -> list[str]:
    """Return the texts that inputs stand for: the rows of a table, the lines of a file, or the input itself.

    column: of a table; None is the column of the data, or else `text`
    """
    name = column or str(getattr(data, "text", "text"))
    return [text for argument in inputs for text in _texts_of(argument, name)]


def _texts_of(argument: str, column: str) -> list[str]:
    path = Path(argument)
    if not is_regular(path):
        if kind_of_table(path) or path.suffix == ".txt":
            raise UserError(f"no file {path}; a text that ends like the name of a file can stand in one")
        return [argument]
    if kind_of_table(path):
        rows = read_rows([path], {"column": column}, {})
        rows.refuse({f"no {column}": rows.blank(column)})
        return rows.texts(column)
    try:
        text = path.read_text(encoding="utf-8-sig").removesuffix("\n")
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from error
    lines = text.split("\n") if text else []  # not `splitlines`: a text may hold other ends of lines
    check_rows(path, {"no text": [number for number, line in enumerate(lines, start=1) if not line.strip()]})
    if not lines:
        raise UserError(f"{path} has no lines")
    return lines


def input_files(path: Path, suffixes: Collection[str], thing: str) -> list[Path]:
    """Return a file, or the files of a folder with these suffixes. Raises UserError where there are none."""
    if os.path.isdir(path):  # False for a text that is too long for a path, where `Path.is_dir` raises
        files = data_files(path, filter(is_regular, path.rglob("*")), suffixes)
        if not files:
            raise UserError(f"{path}: no {thing} in this folder (of {', '.join(sorted(suffixes))})")
        return files
    if not is_regular(path):
        raise UserError(f"no file or folder {shortened(str(path))}; a run on {thing}s reads {thing} files")
    return [path]
