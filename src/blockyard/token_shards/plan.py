"""What is to be written: which text goes into which shard, a function of the files and the options."""

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
    """How texts become splits and shards, as `data=text_file` cuts them.

    split_by: range cuts the running text, document assigns whole files; split_seed: of the latter
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
    """One shard: its split and the texts that it holds."""

    split: str
    file: str
    spans: tuple[Span, ...]

    @property
    def size(self) -> int:
        """Bytes of text."""
        return sum(span.size for span in self.spans)


def plan_shards(sources: Sequence[TextSource], cutting: Cutting) -> list[ShardPlan]:
    """Return the shards of every split in the order of the texts. Raises UserError for a split without text."""
    shards, most = [], cutting.shard_mb * MEGABYTE
    for split, spans in _splits(sources, cutting).items():
        if not spans:
            raise UserError(f"the {split} split has no text; raise its fraction, or use more or longer files")
        groups: list[list[Span]] = [[]]
        for span in (part for each in spans for part in cut(each, min(ENCODED, most))):
            if groups[-1] and sum(each.size for each in groups[-1]) + span.size > most:
                groups.append([])
            groups[-1].append(span)
        shards += [ShardPlan(split, f"{split}-{number:05}.bin", tuple(group)) for number, group in enumerate(groups)]
    return shards


def plan_record(
    sources: Sequence[TextSource], cutting: Cutting, tokenizer: TokenizerRecord, shards: Sequence[ShardPlan]
) -> dict[str, object]:
    """Return what makes a second start the continuation of the first: texts, options, tokenizer, shards."""
    listed = json.dumps([asdict(shard) for shard in shards], sort_keys=True)
    return {
        "sources": [source.record() for source in sources],
        "cutting": cutting.record(),
        "tokenizer": tokenizer,
        "shards": hashlib.sha256(listed.encode()).hexdigest(),
    }


def _splits(sources: Sequence[TextSource], cutting: Cutting) -> dict[str, list[Span]]:
    """The spans of each split; by range train, test and validation lie in this order, as in `data=text_file`."""
    fractions = (cutting.validation_fraction, cutting.test_fraction)
    if cutting.split_by == "document":
        if len(sources) < len(SPLITS):
            raise UserError(f"split_by=document needs 3 files or more, there are {len(sources)}; use split_by=range")
        chosen = by_size([source.characters for source in sources], fractions, cutting.split_seed)
        named = dict(zip(("validation", "test", "train"), chosen, strict=True))
        whole = [Span(source.path, source.start, source.size) for source in sources]
        return {split: [whole[i] for i in named[split]] for split in SPLITS}
    total = sum(source.characters for source in sources)
    stop, middle = int(total * (1 - fractions[0])), int(total * (1 - sum(fractions)))
    ranges = {"train": (0, middle), "validation": (stop, total), "test": (middle, stop)}
    return {split: _between(sources, *ranges[split]) for split in SPLITS}


def _between(sources: Sequence[TextSource], start: int, stop: int) -> list[Span]:
    """The text from one character of all files to another."""
    spans, first = [], 0
    for source in sources:
        begin, end = max(start - first, 0), min(stop - first, source.characters)
        first += source.characters
        if begin < end:
            spans.append(Span(source.path, byte_of(source, begin), byte_of(source, end)))
    return spans
