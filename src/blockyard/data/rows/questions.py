"""A text about an image with a class: the image is the source of the text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from blockyard.contracts import Batch, Splits, Tokenizer
from blockyard.data.files.digest import sha256
from blockyard.data.files.images import levels_to_floats
from blockyard.data.rows.captions import ImageTextRows
from blockyard.data.rows.kind import AssignedRows, Reads
from blockyard.data.rows.texts import labelled_splits, texts_of


@dataclass(frozen=True)
class QuestionRows(ImageTextRows):
    """Rows of a text about an image, with a class or real values. Longer texts are cut."""

    @property
    def reads(self) -> Reads:
        """The contents of a row."""
        return "question"

    def splits(self, assigned: AssignedRows, tokenizer: Tokenizer) -> tuple[Splits, str]:
        """Return the splits; fit the tokenizer on the texts of training unless it has a state."""
        splits = labelled_splits(assigned, tokenizer, self.texts, self.context)
        images = self.image.of(assigned.rows)
        decoded = [images.decode_all(part.tolist()) for part in assigned.parts]
        texts = [text for part in assigned.parts for text in texts_of(assigned.rows, self.texts, part)]
        content = sha256([*decoded, *assigned.targets, *texts])
        return Splits(*(WithImages(*pair) for pair in zip(splits, decoded, strict=True))), content


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
        """Return inputs (B, longest), target (B,), lengths (B,) and source float32 (B, C, size, size)."""
        return replace(self.split.batch(order, key), source=levels_to_floats(self.images[order]))
