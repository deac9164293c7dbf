"""The plan of shards: the texts of each, a function of the files and the options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from blockyard.data.files.token_shards import TokenizerRecord
from blockyard.data.splits.split import by_size
from blockyard.errors import UserError
from blockyard.token_shards.text_files import Span, TextSource, byte_of, cut

SPLITS = ("train", "validation", "test")
ENCODED = 2**22  # bytes of text that are encoded at a time
MEGABYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """Options by which texts become splits and shards, as `data=text_file` cuts them.

    split_by: range cuts the running text, document assigns whole files; split_seed: of document
    shard_mb: megabytes of text in a shard
    """

    validation_fraction: float = 0.1
    test_fraction: float = 0.05
    split_by: Literal["range", "document"] = "range"
    split_seed: int = 0
    shard_mb: int = 64

    def __post_init__(self) -> None:
        if self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                f"validation_fraction={self.validation_fraction} and test_fraction={self.test_fraction} leave nothing "
                "to train on; their sum must be below 1"
            )

    def record(self) -> dict[str, object]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True)
class ShardPlan:
    """One shard: its split and its texts."""

    split: str
    file: str
    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(span.size for span in self.spans)


def plan_shards(sources: Sequence[TextSource], cutting: Cutting) -> list[ShardPlan]:
    """Return the shards of every split in the order of the texts. Raises UserError for a split without text."""
    shards = []
    most = cutting.shard_mb * MEGABYTE
    for split, spans in _splits(sources, cutting).items():
        if not spans:
            raise UserError(f"the {split} split has no text; raise its fraction, or use more or longer files")
        groups: list[list[Span]] = [[]]
        size = 0  # of the last group
        for span in spans:
            for part in cut(span, min(ENCODED, most)):
                if groups[-1] and size + part.size > most:
                    groups.append([])
                    size = 0
                groups[-1].append(part)
                size += part.size
        for number, group in enumerate(groups):
            shards.append(ShardPlan(split, f"{split}-{number:05}.bin", tuple(group)))
    return shards


def plan_record(
    sources: Sequence[TextSource], cutting: Cutting, tokenizer: TokenizerRecord, shards: Sequence[ShardPlan]
) -> dict[str, object]:
    """Return the facts that a second start must share to continue the first: texts, options, tokenizer, shards."""
    listed = json.dumps([asdict(shard) for shard in shards], sort_keys=True)
    return {
        "sources": [source.record() for source in sources],
        "cutting": cutting.record(),
        "tokenizer": tokenizer,
        "shards": hashlib.sha256(listed.encode()).hexdigest(),
    }


def _splits(sources: Sequence[TextSource], cutting: Cutting) -> dict[str, list[Span]]:
    """Return the spans of each split: by range train, test and validation in this order, as in `data=text_file`."""
    fractions = (cutting.validation_fraction, cutting.test_fraction)
    if cutting.split_by == "document":
        if len(sources) < len(SPLITS):
            raise UserError(f"split_by=document needs 3 files or more, there are {len(sources)}; use split_by=range")
        chosen = by_size([source.characters for source in sources], fractions, cutting.split_seed)
        named = dict(zip(("validation", "test", "train"), chosen, strict=True))
        whole = [Span(source.path, source.start, source.size) for source in sources]
        return {split: [whole[i] for i in named[split]] for split in SPLITS}
    total = sum(source.characters for source in sources)
    stop = int(total * (1 - fractions[0]))
    middle = int(total * (1 - sum(fractions)))
    ranges = {"train": (0, middle), "validation": (stop, total), "test": (middle, stop)}
    return {split: _between(sources, *ranges[split]) for split in SPLITS}


def _between(sources: Sequence[TextSource], start: int, stop: int) -> list[Span]:
    """Return the text between two characters, counted over all files, as spans."""
    spans = []
    first = 0  # the number of the file's first character
    for source in sources:
        begin = max(start - first, 0)
        end = min(stop - first, source.characters)
        first += source.characters
        if begin < end:
            spans.append(Span(source.path, byte_of(source, begin), byte_of(source, end)))
    return spans
