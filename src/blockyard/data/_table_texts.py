"""The splits of tables with texts: alone or in pairs, with an image, or written from one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blockyard.contracts import Batch, Splits, TextTokenizer, Tokenizer
from blockyard.data._captions import caption_parts
from blockyard.data._decode import levels_to_floats
from blockyard.data._labelled_texts import LabelledSplit, LabelledTexts
from blockyard.data._split import sha256

if TYPE_CHECKING:
    from blockyard.data._table_load import Assigned
    from blockyard.data.table import Table

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
