"""Texts streamed from files that need not fit on the disk, read by Hugging Face's library; a run resumes exactly.

Source: Lhoest et al. 2021, Datasets: A Community Library for Natural Language Processing (arXiv 2109.02846)
Reference: datasets.load_dataset(..., streaming=True), split_dataset_by_node

    blockyard train data=hf_stream data.path=data/web data.train_size=100000 tokenizer=byte ...
    data.path='hf://datasets/USER/NAME@REVISION/data/*.parquet'      or https://..., s3://..., a list of them

Files whose names begin with train, val and test are those splits: Parquet, Arrow, CSV or JSON with a text in each row.
The texts follow each other and are cut into sequences, neighbours sharing one token. In each epoch the training files
come in another order, and `shuffle_buffer` texts at a time are shuffled: a block is read whole, and permuted by a key
of seed, epoch and block. A position is the library's state in front of the block and an index in the block, so that a
resumed run has the same sequences; the library's own shuffle buffer is empty after a resume.

    position   epoch -> file and row in front of the block -> text of the block -> token of the text

Nodes and their workers read different files where the number of training files is a multiple of all of them, and else
every so many rows of all files, as `split_dataset_by_node` divides them.
"""

from __future__ import annotations

import glob
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from blockyard.contracts import (
    Batch,
    BatchSize,
    CountOrZero,
    DataSpec,
    Length,
    Splits,
    StreamItem,
    StreamPosition,
    Text,
    TextTokenizer,
    Tokenizer,
)
from blockyard.data.files.digest import sha256
from blockyard.data.files.file_names import data_files
from blockyard.data.files.split_names import split_of_file
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import epoch_order, mix, permuted
from blockyard.data.splits.streams import StreamParts, StreamSplit
from blockyard.data.splits.text_tokenizer import text_tokenizer
from blockyard.data.splits.texts import Windows
from blockyard.errors import UserError, first_line

log = logging.getLogger("blockyard")

FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".csv": "csv", ".jsonl": "json", ".json": "json"}
_COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
_LOCAL_BYTES = 2**16  # at the beginning and at the end of a local file, which its fingerprint has


@dataclass(kw_only=True, eq=False)
class HuggingFaceStream(StreamParts, LoadedData):
    """Texts in a column of files, read in order while a run trains.

    Options:
        path: a folder, a file, a glob or an address that fsspec reads, or a list of them
        text: the column of the texts
        context: tokens of a sequence that a model reads
        packed: keep texts within a sequence apart: own positions, no attention or target across
        shuffle_buffer: texts of a part that are read and shuffled together; 0 keeps the order of files and rows
        nodes: parts that give equally many sequences to each step, and are divided among the processes
        node_workers: parts of each node, which steps take by turns and the loader workers of a process divide
        batch_size: sequences in a training step, over all processes
        eval_batch_size: sequences in a validation or test step, over all processes
        train_size: training sequences of an epoch, because a stream has no length
        validation_size: validation sequences, from the beginning of their files; null reads them whole
        test_size: test sequences, likewise
    """

    path: Text | list[Text] = "data/stream"
    text: Text = "text"
    context: Length = 128
    packed: bool = False
    shuffle_buffer: CountOrZero = 1000
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 64

    @property
    def spec(self) -> DataSpec:
        """Sequences of `context` tokens."""
        return DataSpec("text", (self.context,), packed=self.packed, resizable=True)

    def missing(self) -> str | None:
        """Return a message that names the missing library or files and the remedy, or None."""
        import importlib.util

        if importlib.util.find_spec("datasets") is None:
            return "data=hf_stream reads files by the package datasets: pip install 'blockyard[hf]'"
        try:
            assert self.files
        except UserError as error:
            return str(error)
        return None

    @cached_property
    def files(self) -> dict[str, list[str]]:
        """The files of each split, sorted. Raises UserError for a split without files, and for mixed formats."""
        names: list[str] = []
        paths = [self.path] if isinstance(self.path, str) else self.path
        for path in paths:
            names += _expanded(path)
        parts: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
        for name in dict.fromkeys(names):
            part = split_of_file(name.rpartition("/")[2])
            if part is None:
                raise UserError(f"{name} does not say its split; begin its name with train, val or test")
            parts[part].append(name)
        absent = [part for part, files in parts.items() if not files]
        if absent:
            raise UserError(
                f"data.path={self.path}: a stream cannot be split, and no file is there for {' and '.join(absent)}: "
                "none has a name that begins so"
            )
        formats = {_format(name) for name in names}
        if len(formats) > 1:
            raise UserError(f"data.path={self.path} has files of {' and '.join(sorted(formats))}; use one format")
        return parts

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Encode the validation and the test split, and open the stream.

        Raises UserError for a tokenizer that would have to learn from texts, and for files that cannot be read.
        """
        tokenizer = text_tokenizer(tokenizer)
        if tokenizer.learns and not tokenizer.state():
            raise UserError(
                f"{type(tokenizer).__name__} learns its vocabulary from all training texts, which a stream never has "
                "together; use tokenizer=byte, or tokenizer=pretrained tokenizer.path=FILE"
            )
        if self.train_size is None:
            raise UserError("data.train_size is not set, and a stream has no length; set the sequences of an epoch")
        stream = StreamedTexts(self, tokenizer, self.train_size)
        self._fingerprint = sha256(_contents(self.files))
        first = next(stream.read(0, 0, None)).sample
        assert len(first.tokens) == self.context + 1
        return Splits(stream, self._windows(1, tokenizer), self._windows(2, tokenizer))

    def limits(self) -> tuple[str, ...]:
        """Return the limits of files at an address, a sentence each."""
        moving = [name for names in self.files.values() for name in names if _unpinned(name)]
        if not moving:
            return ()
        return (f"{moving[0]} names no revision: its content may change, and nothing notices where its size stays",)

    def _windows(self, part: int, tokenizer: TextTokenizer) -> Windows:
        """Return the sequences of the validation or test split, as many as are kept."""
        name = Splits._fields[part]
        size = (None, self.validation_size, self.test_size)[part]
        needed = None if size is None else size * self.context + 1
        texts: list[np.ndarray] = []
        tokens, num_bytes = 0, 0
        for row in opened(self.files[name], self.text):
            text = _text(row, self.text, self.files[name])
            texts.append(np.array(tokenizer.encode(text), np.int32))
            tokens += len(texts[-1])
            num_bytes += len(text.encode())
            if needed is not None and tokens >= needed:
                break
        if tokens < max(needed or 0, self.context + 1):
            raise UserError(
                f"data.context={self.context} data.{name}_size={'null' if size is None else size}: the {name} files "
                f"have {tokens} tokens, and these need {max(needed or 0, self.context + 1)}"
            )
        ids = torch.from_numpy(np.concatenate(texts))
        number = torch.arange(len(texts), dtype=torch.int32)
        document = number.repeat_interleave(torch.tensor([len(text) for text in texts]))
        windows = Windows(ids, document if self.packed else None, self.context, num_bytes / tokens, document)
        return windows.first(self.size_of(part, len(windows)))


class Window(NamedTuple):
    """A sequence of a stream: its token ids (context + 1,) int32, and the number of each token's text in it."""

    tokens: np.ndarray
    texts: np.ndarray


class _Tokens(NamedTuple):
    """Token ids of a text that are in no sequence yet. start: the position in front of the text; offset: ids before"""

    ids: np.ndarray
    start: StreamPosition | None
    offset: int


class StreamedTexts(StreamSplit):
    """The training texts as sequences of `context` + 1 tokens."""

    def __init__(self, data: HuggingFaceStream, tokenizer: TextTokenizer, size: int) -> None:
        super().__init__(size, data.nodes, data.node_workers)
        self.files, self.column = data.files["train"], data.text
        self.context, self.packed, self.shuffle_buffer = data.context, data.packed, data.shuffle_buffer
        self.tokenizer = tokenizer

    def read(self, part: int, seed: int, position: StreamPosition | None) -> Iterator[StreamItem]:
        """Yield the sequences of a part. A position is that in front of the text of its first token, and the token."""
        start, offset = None, 0
        if position is not None:
            start, offset = position["text"], position["token"]
        waiting: deque[_Tokens] = deque()
        count = 0
        for text, behind in self.texts(part, seed, start):
            ids = np.array(self.tokenizer.encode(text), np.int32)[offset:]
            waiting.append(_Tokens(ids, start, offset))
            count += len(ids)
            start, offset = behind, 0
            while count > self.context:
                yield _cut(waiting, self.context)
                count -= self.context

    def texts(self, part: int, seed: int, position: StreamPosition | None) -> Iterator[tuple[str, StreamPosition]]:
        """Yield the texts of a part without end, each with the position behind it."""
        epoch, inside = 0, None
        if position is not None:
            epoch, inside = position["epoch"], position["inside"]
        while True:
            some = False
            for row, behind in self._epoch(part, seed, epoch, inside):
                some = True
                yield _text(row, self.column, self.files), {"epoch": epoch, "inside": behind}
            if not some and position is None:
                raise UserError(
                    f"part {part} of {self.parts} has no text; use fewer data.nodes and data.node_workers, or more rows"
                )
            epoch, inside, position = epoch + 1, None, None

    def _epoch(self, part: int, seed: int, epoch: int, position: StreamPosition | None) -> Iterator[tuple[Any, Any]]:
        """Yield the rows of a part in an epoch, each with the position behind it."""
        files = self.files
        if self.shuffle_buffer:
            files = [files[index] for index in epoch_order(mix("files", seed), epoch, len(files)).tolist()]
        dataset = opened(files, self.column, part, self.parts)
        if not self.shuffle_buffer:
            if position is not None:
                dataset.load_state_dict(position)
            for row in dataset:
                yield row, dataset.state_dict()
            return
        block, in_front, done = 0, None, 0
        if position is not None:
            block, in_front, done = position["block"], position["in_front"], position["done"]
        if in_front is not None:
            dataset.load_state_dict(in_front)
        rows = iter(dataset)
        while items := list(islice(rows, self.shuffle_buffer)):
            behind = dataset.state_dict()
            key = mix("texts", seed, epoch, part, block)
            for index in permuted(torch.arange(len(items)), len(items), key)[done:].tolist():
                done += 1
                yield items[index], {"block": block, "in_front": in_front, "done": done}
            block, in_front, done = block + 1, behind, 0

    def collate(self, items: Sequence[Window], numbers: Sequence[int]) -> Batch:
        """Return inputs (B, context + 1), and if packed a segment of that shape, from 0 in each sequence."""
        inputs = torch.from_numpy(np.stack([item.tokens for item in items])).long()
        if not self.packed:
            return Batch(inputs)
        return Batch(inputs, segment=torch.from_numpy(np.stack([item.texts for item in items])).long())


def _cut(waiting: deque[_Tokens], context: int) -> StreamItem:
    """Take the next sequence out of the tokens of texts; the one after it begins with its last token."""
    ids: list[np.ndarray] = []
    texts: list[np.ndarray] = []
    needed = context + 1
    while True:
        first = waiting[0]
        taken = first.ids[:needed]
        ids.append(taken)
        texts.append(np.full(len(taken), len(texts), np.int32))
        needed -= len(taken)
        if not needed:
            break
        waiting.popleft()
    used = len(taken) - 1
    waiting[0] = _Tokens(first.ids[used:], first.start, first.offset + used)
    window = Window(np.concatenate(ids), np.concatenate(texts))
    return StreamItem(window, {"text": first.start, "token": first.offset + used})


def opened(files: Sequence[str], column: str, part: int = 0, parts: int = 1) -> Any:
    """Return the streamed dataset of a part of files. Raises UserError for files that cannot be read."""
    import datasets
    from datasets.distributed import split_dataset_by_node

    named = {"train": list(files)}
    try:
        dataset = datasets.load_dataset(_format(files[0]), data_files=named, split="train", streaming=True)
        columns = dataset.column_names or list(next(iter(dataset)))
    except StopIteration:
        raise UserError(f"{files[0]} has no rows") from None
    except Exception as error:  # of the library, a file system or a format
        raise UserError(f"{files[0]} cannot be streamed: {type(error).__name__}: {first_line(error)}") from error
    if column not in columns:
        raise UserError(f"{files[0]} has no column {column}; set data.text to one of {', '.join(columns)}")
    return split_dataset_by_node(dataset.select_columns([column]), part, parts)


def _text(row: Any, column: str, files: Sequence[str]) -> str:
    text = row[column]
    if not isinstance(text, str):
        raise UserError(f"{files[0]}: column {column} has a {type(text).__name__}, {str(text)[:60]!r}; texts are read")
    return text


def _expanded(path: str) -> list[str]:
    """Return the files that a path, a glob or an address names. Raises UserError where there are none."""
    if "://" in path:
        return _expanded_address(path)
    root = Path(path).expanduser()
    if root.is_dir():
        suffixes = {*FORMATS, *_COMPRESSED}
        files = data_files(root, (file for file in root.rglob("*") if file.is_file()), suffixes)
    else:
        files = [Path(name) for name in sorted(glob.glob(str(root)))]
    if not files:
        raise UserError(f"no files at {root.absolute()}; set data.path=FOLDER with train-0.parquet, val-0.parquet, ...")
    return [str(file.absolute()) for file in files]


def _expanded_address(path: str) -> list[str]:
    import fsspec

    if not glob.has_magic(path):
        return [path]
    try:
        files, pattern = fsspec.core.url_to_fs(path)
        names = [files.unstrip_protocol(name) for name in sorted(files.glob(pattern))]
    except Exception as error:  # of any file system
        raise UserError(f"data.path={path} cannot be listed: {type(error).__name__}: {first_line(error)}") from error
    if not names:
        raise UserError(f"data.path={path} names no files")
    return names


def _format(name: str) -> str:
    """Return the reader of a file, by the end of its name. Raises UserError for any other end."""
    suffixes = Path(name).suffixes
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes = suffixes[:-1]
    if not suffixes or suffixes[-1] not in FORMATS:
        raise UserError(f"{name} is of no format that is streamed; {', '.join(FORMATS)} are")
    return FORMATS[suffixes[-1]]


def _unpinned(name: str) -> bool:
    if "://" not in name:
        return False
    return not name.startswith("hf://") or "@" not in name


def _contents(files: dict[str, list[str]]) -> Iterator[str | bytes]:
    """Yield the names of files, their sizes and hashes where these are known, and both ends of local files."""
    import fsspec

    for part, names in files.items():
        yield f"{part} {len(names)}"
        for name in names:
            system, path = fsspec.core.url_to_fs(name)
            try:
                info = system.info(path)
            except Exception as error:  # of any file system
                raise UserError(f"{name} cannot be read: {type(error).__name__}: {first_line(error)}") from error
            facts = [str(info.get(key)) for key in ("size", "ETag", "etag", "blob_id", "md5") if info.get(key)]
            yield " ".join([name.rpartition("/")[2], *facts])
            if "://" not in name:
                with open(name, "rb") as file:
                    yield file.read(_LOCAL_BYTES)
                    file.seek(max(info["size"] - _LOCAL_BYTES, 0))
                    yield file.read(_LOCAL_BYTES)
