"""From the checked rows of a table to its splits: who goes where, and what a model gets of each row."""

from __future__ import annotations

import io
import logging
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from blockyard.contracts import Batch, ImageTokenizer, Splits, TextTokenizer, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.files.images import decode_stream, levels_to_floats
from blockyard.data.files.pairs import NAMES
from blockyard.data.files.table_rows import Rows
from blockyard.data.splits.captions import caption_parts
from blockyard.data.splits.images import ImageData, ImageFiles, ImageSplit, LabelledImages, LazyImageSplit
from blockyard.data.splits.labelled_texts import LabelledSplit, LabelledTexts
from blockyard.data.splits.row_splits import split_rows, together, warn_of_duplicates
from blockyard.data.splits.split import Sliced, with_values
from blockyard.data.splits.vectors import vector_splits
from blockyard.errors import UserError

if TYPE_CHECKING:
    from blockyard.data.table import Table


# Images that the rows of a table name or hold: read, checked by row, and split as any images are.

SAMPLE = 2000  # images that give the channel statistics of a table too large for memory
_SHOWN = 10  # unreadable images that one message names


@dataclass(frozen=True)
class RowImages:
    """The images of a table. column: of paths, or of the bytes of files; root: what relative paths start from."""

    rows: Rows
    column: str
    root: Path
    channels: int
    size: int

    def file(self, row: int) -> Path | bytes:
        """Returns the path of a row's image, or its content."""
        cell: Any = self.rows.table[self.column][row].as_py()
        if isinstance(cell, dict):  # as Hugging Face datasets store images
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, bytes):
            return cell
        return self.root.joinpath(cell)

    def check(self) -> None:
        """Raises UserError naming the rows whose image is no file."""
        absent = np.zeros(len(self.rows), dtype=bool)
        for row in range(len(self.rows)):
            content = self.file(row)
            absent[row] = isinstance(content, Path) and not content.is_file()
        first = self.file(int(absent.argmax())) if absent.any() else ""
        self.rows.refuse({f"{self.column} names a missing file, such as {first!s}": absent})

    def decode(self, row: int, *, on_white: bool = False) -> Tensor:
        """Returns an image uint8 (channels, size, size). Raises UserError naming its row and column."""
        content = self.file(row)
        stream = io.BytesIO(content) if isinstance(content, bytes) else content
        name = "the image" if isinstance(content, bytes) else content
        try:
            return decode_stream(stream, name, channels=self.channels, size=self.size, on_white=on_white)
        except UserError as error:
            raise UserError(f"{self.rows.where(row)}, {self.column}: {error}") from error

    def decode_all(self, rows: Sequence[int], workers: int, *, on_white: bool = False) -> Tensor:
        """Returns the images of some rows, uint8 (n, channels, size, size). Raises UserError naming unreadable ones."""

        def attempt(row: int) -> Tensor | str:
            try:
                return self.decode(row, on_white=on_white)
            except UserError as error:
                return str(error)

        with ThreadPoolExecutor(max(workers, 1)) as pool:
            results = list(pool.map(attempt, rows))
        problems = [result for result in results if isinstance(result, str)]
        if problems:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise UserError("; ".join(problems[:_SHOWN]) + more)
        return torch.stack([result for result in results if isinstance(result, Tensor)])


@dataclass(kw_only=True, eq=False)
class TableImages(ImageData):
    """Splits of images whose rows are known. Not a choice of its own: `Table` makes it.

    Options:
        side: of an image in pixels after resizing
        channels: 3 for color, 1 for grayscale
        classes: number of classes
        memory_limit: megabytes of pixels up to which all images are decoded into memory
        workers: threads that decode
    """

    classes: Any = None
    shape: Any = None
    side: int
    channels: int
    memory_limit: int
    workers: int
    content: str = field(default="", init=False)

    def read(self) -> tuple[LabelledImages, LabelledImages]:
        """Is not called: `of_rows` reads."""
        raise AssertionError("the parts are given")

    def of_rows(
        self, images: RowImages, parts: Sequence[Tensor], targets: Sequence[Tensor], tokenizer: Tokenizer
    ) -> Splits:
        """Returns the splits. parts: the rows of each; targets: their classes (n,) int64."""
        self.shape = (self.channels, self.side, self.side)
        rows = [part.tolist() for part in parts]
        if torch.Size(self.shape).numel() * sum(map(len, rows)) <= self.memory_limit * 2**20:
            decoded = [images.decode_all(part, self.workers) for part in rows]
            self.content = sha256(tensor for pair in zip(decoded, targets, strict=True) for tensor in pair)
            labelled = [LabelledImages(*pair) for pair in zip(decoded, targets, strict=True)]
            return self.splits(ImageSplit, labelled, labelled[0].images, tokenizer)
        # Hashing the bytes of all files would take as long as training on them.
        files = [[images.file(row) for row in part] for part in rows]
        self.content = sha256(
            f"{file!s} {file.stat().st_size}" if isinstance(file, Path) else file for part in files for file in part
        )
        lazy = [ImageFiles(part, own, images.decode, self.workers) for part, own in zip(rows, targets, strict=True)]
        sample = torch.linspace(0, len(rows[0]) - 1, min(SAMPLE, len(rows[0]))).long()
        return self.splits(LazyImageSplit, lazy, lazy[0].images(sample), tokenizer)


# The splits of tables with texts: alone or in pairs, with an image, or written from one.

_CHUNK = 4096  # texts that are encoded at a time


def text_splits(assigned: Assigned, tokenizer: Tokenizer) -> Splits:
    """Returns splits of texts or of pairs; fits the tokenizer on those of training if it has no state."""
    table, classes = assigned.table, max(len(assigned.table.class_names), 1)
    tokens = _fitted(assigned, tokenizer)
    train, *rest = (_encoded(assigned, part, tokens) for part in assigned.parts)
    splits = [LabelledSplit(part, tokens, train, classes, variable=True) for part in (train, *rest)]
    assert table.reads in ("text", "pair", "question")
    return Splits(*splits)


def question_splits(assigned: Assigned, tokenizer: Tokenizer) -> tuple[Splits, str]:
    """Returns splits of texts about an image each, and a hash of their content."""
    splits = text_splits(assigned, tokenizer)
    images = [
        assigned.images.decode_all(part.tolist(), assigned.table.workers, on_white=True) for part in assigned.parts
    ]
    texts = [text for part in assigned.parts for text in _texts(assigned, part)]
    content = sha256([*images, *assigned.targets, *texts])
    return Splits(*(WithImages(*pair) for pair in zip(splits, images, strict=True))), content


def caption_splits(assigned: Assigned, tokenizer: Tokenizer) -> tuple[Splits, str]:
    """Returns splits of images with a caption each, and a hash of their content."""
    table, column = assigned.table, assigned.table.texts[0]
    images = assigned.images.decode_all(range(len(assigned.rows)), table.workers, on_white=True)
    texts = [text.strip() for text in assigned.rows.texts(column)]
    names = [str(assigned.rows.where(row)) for row in range(len(texts))]
    splits = caption_parts(assigned.parts, images, names, texts, table.spec, tokenizer, blank=False)
    return splits, sha256([images, *texts])


class WithImages:
    """A split of labelled texts with an image each. images: uint8 (n, C, size, size)."""

    def __init__(self, split: Any, images: Tensor) -> None:
        self.split, self.images = split, images
        self.class_counts, self.baselines = split.class_counts, split.baselines

    def __len__(self) -> int:
        return len(self.images)

    @property
    def lengths(self) -> Tensor:
        """The tokens of each text, (n,)."""
        lengths: Tensor = self.split.lengths
        return lengths

    def batch(self, order: Tensor, key: int | None) -> Batch:
        """Returns inputs (B, longest), target (B,), lengths (B,) and source float32 (B, C, size, size)."""
        return replace(self.split.batch(order, key), source=levels_to_floats(self.images[order]))


def _fitted(assigned: Assigned, tokenizer: Tokenizer) -> TextTokenizer:
    if not isinstance(tokenizer, TextTokenizer):
        raise ValueError(f"text data needs a text tokenizer, not {type(tokenizer).__name__}")
    if not tokenizer.state():
        tokenizer.fit(list(_texts(assigned, assigned.parts[0])))
    return tokenizer


def _texts(assigned: Assigned, part: Tensor) -> Iterator[str]:
    """The texts of some rows, both of a pair after one another."""
    for chunk in part.split(_CHUNK):
        columns = [assigned.rows.texts(name, chunk.tolist()) for name in assigned.table.texts]
        for row in zip(*columns, strict=True):
            yield from row


def read_texts(table: Table, rows: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
    """Returns the text of some rows as far as a model reads it; both of a pair, whole, with a blank between."""
    columns = [table.rows.texts(name, rows) for name in table.texts]
    if len(columns) > 1:
        return [" ".join(row) for row in zip(*columns, strict=True)]
    return [beginning(text, tokenizer, table.context) for text in columns[0]]


def beginning(text: str, tokenizer: TextTokenizer, count: int) -> str:
    """Returns the part of a text that its first `count` tokens stand for."""
    low, high = 0, len(text)
    if len(tokenizer.encode(text)) <= count:
        return text
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(tokenizer.encode(text[:middle])) <= count else (low, middle - 1)
    return text[:low]


def _encoded(assigned: Assigned, part: Tensor, tokenizer: TextTokenizer) -> LabelledTexts:
    """The texts of some rows as token ids, `context` of each at most: those of a pair with the start token between."""
    table, encoded, lengths = assigned.table, [], []
    start = tokenizer.spec(table.spec).start if table.reads == "pair" else None
    each = iter(_texts(assigned, part))
    for row in zip(*[each] * len(table.texts), strict=True):
        ids = joined([tokenizer.encode(text) for text in row], start, table.context)
        lengths.append(len(ids))
        encoded.append(torch.tensor(ids, dtype=torch.int32))
    tokens = torch.tensor(lengths, dtype=torch.int64)
    begin = tokens.cumsum(0) - tokens
    slices = None if assigned.slices is None else assigned.slices[part]
    return LabelledTexts(torch.cat(encoded), begin, tokens, assigned.target[part], slices, separator=start)


def joined(ids: Sequence[list[int]], start: int | None, context: int) -> list[int]:
    """Returns one text cut to `context` token ids; or two with the start token between, the longer one cut first."""
    if start is None:
        return ids[0][:context]
    first, second = ids
    room = max(context - 1, 0)
    half = room // 2
    if len(first) + len(second) > room:
        keep = max(half, room - len(second))
        first, second = first[:keep], second[: max(room - min(len(first), keep), 0)]
    return [*first, start, *second]


log = logging.getLogger("blockyard")


@dataclass(frozen=True)
class Assigned:
    """The rows of each split, and what is predicted of all rows.

    parts: the rows of the training, validation and test split, ascending; target: (rows,) int64 classes, zeros where
    there are none; values: (rows, T) float64, or None; slices: (rows,) int64, or None
    """

    table: Table
    rows: Rows
    parts: list[Tensor]
    target: Tensor
    values: Tensor | None
    slices: Tensor | None

    @property
    def targets(self) -> list[Tensor]:
        """The classes of each split, (n,) int64."""
        return [self.target[part] for part in self.parts]

    @cached_property
    def images(self) -> RowImages:
        """The images of all rows, checked."""
        table = self.table
        assert table.image is not None
        root = self.rows.files[0].parent if table.root is None else Path(table.root).expanduser()
        images = RowImages(self.rows, table.image, root, table.channels, table.size)
        images.check()
        return images


def load_rows(table: Table, tokenizer: Tokenizer) -> tuple[Splits, str, Tensor]:
    """Returns the splits of a table, their fingerprint, and the rows of the test split (n,).

    Raises UserError as `Table.load` does.
    """
    rows = table.rows
    keys = _keys(table, rows)
    assigned = _assign(table, rows, keys)
    splits, content = _splits(assigned, tokenizer)
    names = [table.label or "label", *table.texts]
    fingerprint = content or sha256(_cells(assigned, names))
    # Images that are written have no other target than their own tokens.
    if assigned.values is not None and not isinstance(tokenizer, ImageTokenizer):
        splits = with_values(splits, [assigned.values[part] for part in assigned.parts], table.target)
    if assigned.slices is not None and table.reads not in ("text", "pair"):
        slices = assigned.slices
        splits = Splits(*(Sliced(split, slices[part]) for split, part in zip(splits, assigned.parts, strict=True)))
    if assigned.values is not None:
        fingerprint = sha256([fingerprint, *(assigned.values[part] for part in assigned.parts)])
    return splits, fingerprint, assigned.parts[2]


def _splits(assigned: Assigned, tokenizer: Tokenizer) -> tuple[Splits, str]:
    """The splits without real-valued targets, and a hash of their content where it is not that of texts."""
    table, rows, parts = assigned.table, assigned.rows, assigned.parts
    classes = None if table.target else len(table.class_names)
    if table.reads == "numbers":
        numbers = torch.from_numpy(rows.numbers(table.columns))
        _tell_missing(table, numbers)
        values = [numbers[part] for part in parts]
        splits = vector_splits(values, assigned.targets, table.columns, classes)
        return Splits(*splits), sha256([*values, *assigned.targets])
    if table.reads == "image":
        table_images = TableImages(
            **{name: getattr(table, name) for name in ("channels", "memory_limit", "workers", "shift", "crop", "flip")},
            side=table.size,
            classes=classes,
        )
        return table_images.of_rows(assigned.images, parts, assigned.targets, tokenizer), table_images.content
    if table.reads == "caption":
        return caption_splits(assigned, tokenizer)
    return question_splits(assigned, tokenizer) if table.reads == "question" else (text_splits(assigned, tokenizer), "")


def _assign(table: Table, rows: Rows, keys: list[Hashable]) -> Assigned:
    """Draws or reads the splits, and checks them."""
    target = torch.zeros(len(rows), dtype=torch.int64)
    if table.class_names:
        target = _numbers(rows, table.label or "label", table.class_names)
    named = [NAMES[name] for name in rows.texts(table.split)] if "data.split" in table.named_columns else None
    groups = None if table.group is None else rows.texts(table.group)
    fractions = (table.validation_fraction, table.test_fraction)
    units, repeated = together(keys, groups)
    if named is not None and groups is not None:
        _refuse_crossing(table, rows, groups, named)
    if repeated and named is None:
        log.warning(
            "%s: %d of %d rows repeat the inputs of an earlier one; they stay in its split",
            table.path,
            repeated,
            len(rows),
        )
    parts = split_rows(table.path, target, named, fractions, table.split_seed, units)
    if table.class_names:
        _check_classes(table, rows, target, parts[0])
    parts = [part[table.kept(number, len(part), target[part])] for number, part in enumerate(parts)]
    warn_of_duplicates(
        table.path, [[keys[i] for i in part.tolist()] for part in parts], _THINGS.get(table.reads, "rows")
    )
    values = torch.from_numpy(rows.numbers(table.target)) if table.target else None
    slices = None if table.slices is None else _numbers(rows, table.slices, table.slice_names)
    return Assigned(table, rows, parts, target, values, slices)


_THINGS = {"text": "texts", "pair": "pairs", "image": "images"}


def _keys(table: Table, rows: Rows) -> list[Hashable]:
    """What a model reads of each row, to tell repeated ones."""
    if table.reads == "numbers":
        return [row.tobytes() for row in rows.numbers(table.columns)]
    columns = [rows.texts(name) for name in table.texts]
    if table.image is not None:
        columns.append(
            [
                str(cell) if isinstance(cell, str) else sha256([str(cell)])
                for cell in rows.table[table.image].to_pylist()
            ]
        )
    return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))


def _numbers(rows: Rows, column: str, names: Sequence[str]) -> Tensor:
    """The cells of a column as their index in `names`, (rows,) int64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return torch.tensor(np.array(pc.index_in(rows.table[column], pa.array(list(names)))), dtype=torch.int64)


def _check_classes(table: Table, rows: Rows, target: Tensor, train: Tensor) -> None:
    trained = np.isin(target.numpy(), target[train].numpy())
    rows.refuse(
        {
            f"no training row has the {table.label} {name!r}": (target == number).numpy() & ~trained
            for number, name in enumerate(table.class_names)
        }
    )


def _refuse_crossing(table: Table, rows: Rows, groups: Sequence[str], named: Sequence[int]) -> None:
    """Raises UserError naming the rows of groups that the file puts in more than one split."""
    first: dict[str, int] = {}
    crossing = {group for group, part in zip(groups, named, strict=True) if first.setdefault(group, part) != part}
    mask = np.array([group in crossing for group in groups])
    some = ", ".join(sorted(crossing)[:5])
    rows.refuse({f"{len(crossing)} of the {table.group} are in several splits, such as {some}": mask})


def _tell_missing(table: Table, numbers: Tensor) -> None:
    counts = {name: int(gone) for name, gone in zip(table.columns, numbers.isnan().sum(0), strict=True) if gone}
    if counts:
        shown = ", ".join(f"{count} of {name}" for name, count in list(counts.items())[:10])
        log.warning("%s: of %d rows, values are missing: %s; the mean stands for them", table.path, len(numbers), shown)


def _cells(assigned: Assigned, columns: Sequence[str]) -> Iterator[str]:
    """The cells of each split, row by row: the label, then the texts."""
    rows = assigned.rows
    present = [name for name in columns if name in rows.table.column_names]
    for part in assigned.parts:
        yield str(len(part))
        for chunk in part.split(4096):
            yield from (
                " ".join(cells) for cells in zip(*(rows.texts(name, chunk.tolist()) for name in present), strict=True)
            )
