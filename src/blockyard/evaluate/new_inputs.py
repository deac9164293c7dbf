"""New inputs as a run reads them: texts, tables, images, sounds, graphs, series and arrays, named, and in batches.

what the run reads          what is given
texts                       texts, files with one in each line, tables (.csv, .tsv, .jsonl, also .gz)
pairs, or columns           tables with the columns of the run's data
images                      image files, folders of them
sounds                      sound files, folders of them
a picture with a text       tables with a column of paths and one of texts
graphs                      lines of JSON (.graphs.jsonl, also .gz), or a .csv with SMILES
series with a class each    .ts files, whose classes are not read
rows of arrays              .npz, .npy
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from blockyard.atomic_files import is_regular
from blockyard.contracts import Batch, DataSpec, GraphTokenizer, SourceFiles, TextTokenizer
from blockyard.data.files.file_names import data_files
from blockyard.data.files.images import SUFFIXES, decode_image
from blockyard.data.files.sounds import SUFFIXES as SOUNDS
from blockyard.data.files.tables import check_rows, kind_of, read_table
from blockyard.errors import UserError, fold, shortened
from blockyard.evaluate.predict_rows import (
    BATCH,
    Inputs,
    array_rows,
    graph_rows,
    is_array,
    number_rows,
    padded,
    pair_rows,
    picture_rows,
    series_rows,
)
from blockyard.runs.load import Loaded, splits_of

log = logging.getLogger("blockyard")


def new_inputs(loaded: Loaded, inputs: Sequence[str], column: str | None = None) -> Inputs:
    """Return the inputs that the arguments stand for, by name, and batches of them without targets.

    A run that reads a source alone, or through an encoder, gets the inputs as its source.

    column: of a table, that of the texts; None is the one of the run's data
    Raises UserError where an input cannot be read, and for a run whose inputs no file can hold.
    """
    source = reads_source(loaded)
    spec = loaded.data.spec.source if source else loaded.data.spec
    assert spec is not None
    names, batches = _read(loaded, spec, inputs, column, source=source)
    return names, batches


def reads_source(loaded: Loaded) -> bool:
    """Whether what a run reads of a new input is a source: it has no other sequence, or writes it later."""
    return loaded.objective.reads == "source" or loaded.components.architecture.crosses


def _read(loaded: Loaded, spec: DataSpec, inputs: Sequence[str], column: str | None, *, source: bool) -> Inputs:
    tokenizer = loaded.components.source_tokenizer if source else loaded.tokenizer
    if column is not None and (spec.modality != "text" or spec.source is not None or spec.joined):
        raise UserError(f"column={column}: {loaded.folder.name} reads {spec.things}, not tables of texts")
    if spec.source is not None:
        if (spec.modality, spec.source.modality) == ("text", "image"):
            return picture_rows(loaded, inputs)
        raise UserError(
            f"{loaded.folder.name} reads {spec.things} together with {spec.source.things}, which no table holds; "
            "use split=test"
        )
    if any(map(is_array, inputs)):
        return array_rows(loaded, inputs, test_split(loaded))
    if spec.modality == "vector":
        return number_rows(loaded, inputs, test_split(loaded))
    if spec.modality == "image":
        return image_batches(loaded, inputs, source=source)
    if spec.modality == "audio" and isinstance(loaded.data, SourceFiles):
        return _source_files(loaded, inputs, SOUNDS, "sound", variable=spec.variable)
    if isinstance(tokenizer, GraphTokenizer):
        return graph_rows(loaded, tokenizer, inputs)
    if spec.modality == "series" and loaded.data.spec.target == "class":
        return series_rows(loaded, inputs, test_split(loaded))
    if isinstance(tokenizer, TextTokenizer) and spec.modality == "text":
        if spec.joined:
            pairs, joined_ids = pair_rows(loaded, inputs)
            return pairs, _padded(joined_ids, variable=True)
        ctx = loaded.model.ctx
        most = (ctx.source_tokens if loaded.components.architecture.crosses else ctx.tokens).max_len
        return text_batches(loaded, inputs, column, tokenizer, most, variable=spec.variable)
    raise UserError(
        f"{loaded.folder.name} was trained on {spec.things}, which no file of new inputs holds; new inputs are texts, "
        "images, sounds, graphs, series with classes, tables and arrays (.npz, .npy)"
    )


# Texts, files of texts and tables as batches of token ids.


def texts_of(loaded: Loaded, inputs: Sequence[str], column: str | None) -> list[str]:
    """Return the texts that the inputs stand for: texts, and those of files and tables."""
    return [text for each in inputs for text in _texts_of(loaded, each, column)]


def text_batches(
    loaded: Loaded, inputs: Sequence[str], column: str | None, tokenizer: TextTokenizer, most: int, *, variable: bool
) -> Inputs:
    """Return the texts that the inputs stand for, and batches of them. most: tokens of a text, further ones are cut.

    variable: whether the model knows padding
    """
    texts = texts_of(loaded, inputs, column)
    token_ids = [tokenizer.encode(text) for text in texts]
    long = sum(len(ids) > most for ids in token_ids)
    if long:
        log.warning("%d of %d texts have more than %d tokens; the model reads their beginning", long, len(texts), most)
    empty = [str(number) for number, ids in enumerate(token_ids, start=1) if not ids]
    if empty:
        raise UserError(f"input {fold(empty)}: no token is left of the text; leave it out")
    return texts, _padded([ids[:most] for ids in token_ids], variable=variable)


def _texts_of(loaded: Loaded, text: str, column: str | None) -> list[str]:
    """The texts that an input stands for: those of a table, the lines of a file, or the input itself."""
    path = Path(text)
    if not is_regular(path):
        if kind_of(path) or path.suffix == ".txt":
            raise UserError(f"no file {path}; a text that ends like the name of a file can stand in one")
        return [text]
    if kind_of(path):
        name = column or str(getattr(loaded.data, "text", "text"))
        table = read_table(path, {"column": name})
        blank = table[name].isna() | (table[name].str.strip() == "")
        check_rows(path, {f"no {name}": table.index[blank].tolist()})
        return [str(text) for text in table[name]]
    try:
        text = path.read_text(encoding="utf-8-sig").removesuffix("\n")
        lines = text.split("\n") if text else []  # not `splitlines`: a text may hold other ends of lines
    except (UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from error
    blank = [number for number, line in enumerate(lines, start=1) if not line.strip()]
    check_rows(path, {"no text": blank})
    if not lines:
        raise UserError(f"{path} has no lines")
    return lines


def _padded(token_ids: list[list[int]], *, variable: bool) -> Iterator[Batch]:
    """Batches of sequences: padded on the right, or each alone for a model that knows no padding."""
    size = BATCH if variable else 1
    for start in range(0, len(token_ids), size):
        batch = padded(token_ids[start : start + size])
        yield batch if variable else Batch(batch.inputs)


# Image files as batches of what a run reads, and the split that knows how it prepares them.

_BYTES = 256  # gray levels of an image file as it is read


@runtime_checkable
class Preprocessed(Protocol):
    """A split that turns stored bytes into what a model reads, as the splits of images do."""

    def preprocess(self, images: Tensor, order: Tensor, key: int | None) -> Tensor:
        """Maps images uint8 (B, C, height, width) to inputs float32; a key of None draws nothing."""
        ...


def image_batches(loaded: Loaded, paths: Sequence[str], *, source: bool) -> Inputs:
    """Return the image files that the paths name, and batches of them. Raises UserError.

    source: whether they are read as the source of the run's data
    """
    if source:
        if not isinstance(loaded.data, SourceFiles):
            raise UserError(f"{loaded.folder.name}: {type(loaded.data).__name__} does not say how images become inputs")
        return _source_files(loaded, paths, SUFFIXES, "image", variable=False)
    files = [file for path in paths for file in _files_of(Path(path), SUFFIXES, "image")]
    split = _split(loaded)
    channels, height, width = loaded.data.spec.shape
    levels = loaded.data.spec.levels or _BYTES
    if height != width:
        raise UserError(f"{loaded.folder.name} reads images of {height} x {width}; predict resizes to squares only")

    def batches() -> Iterator[Batch]:
        for start in range(0, len(files), BATCH):
            some = files[start : start + BATCH]
            images = torch.stack([decode_image(file, channels=channels, size=height) for file in some])
            if levels != _BYTES:  # data of fewer gray levels, such as the 17 of the digits, is stored as it is
                images = (images.double() * (levels - 1) / (_BYTES - 1)).round().to(torch.uint8)
            yield Batch(split.preprocess(images, torch.arange(len(some)), None))

    return [str(file) for file in files], batches()


def _source_files(
    loaded: Loaded, paths: Sequence[str], suffixes: Collection[str], thing: str, *, variable: bool
) -> Inputs:
    """The files of sources that the paths name, and batches of them."""
    data: Any = loaded.data
    files = [file for path in paths for file in _files_of(Path(path).expanduser(), suffixes, thing)]

    def batches() -> Iterator[Batch]:
        for start in range(0, len(files), BATCH):
            some = [data.read_source(str(file))[0] for file in files[start : start + BATCH]]
            lengths = torch.tensor([len(each) for each in some]) if variable else None
            yield Batch(pad_sequence(some, batch_first=True), lengths=lengths)

    return [str(file) for file in files], batches()


def _files_of(path: Path, suffixes: Collection[str], thing: str) -> list[Path]:
    if os.path.isdir(path):  # False for a text that is too long for a path, where `Path.is_dir` raises
        files = data_files(path, filter(is_regular, path.rglob("*")), suffixes)
        if not files:
            raise UserError(f"{path}: no {thing} in this folder (of {', '.join(sorted(suffixes))})")
        return files
    if not is_regular(path):
        raise UserError(f"no file or folder {shortened(str(path))}; a run on {thing}s reads {thing} files")
    return [path]


def test_split(loaded: Loaded) -> Any:
    """The run's test split, which knows how values are standardized."""
    missing = loaded.data.missing()
    if missing:
        raise UserError(f"{loaded.data.spec.things} are standardized as the training split was: {missing}")
    return splits_of(loaded).test


def _split(loaded: Loaded) -> Any:
    """The run's test split, which knows how images are normalized."""
    split = test_split(loaded)
    if not isinstance(split, Preprocessed):
        raise UserError(f"{loaded.folder.name}: {type(split).__name__} does not say how images become inputs")
    return split
