"""Pairs of sentences, for a model that reads one and writes the other; dates in two languages by default.

Source: Unicode CLDR date formats, https://cldr.unicode.org; the task is that of Bahdanau, Cho and Bengio
    2015, Neural Machine Translation by Jointly Learning to Align and Translate (arXiv 1409.0473)
Reference: babel.dates.format_date

    source   Saturday, November 21, 2026         the encoder's row
    inputs   START 21. November 2026 END         the decoder's, to be shifted by the objective

Without a path: 10,000 days, each written in full, long or medium form in one language and in long form
in another. With one: a file of tab-separated columns, packed with gzip or not. Where its first line
names a column `split` (train, val, test), that is the split; else pairs are dealt by `split_seed`. No
side of a pair occurs in two parts. One tokenizer reads both sides; start and end are two symbols more
than it has.
"""

from __future__ import annotations

from pathlib import Path

import torch

from blockyard.contracts import Count, CountOrZero, DataModule, DataSpec, Splits, TextTokenizer, Tokenizer
from blockyard.data._dates import date_pairs, spelled, unknown
from blockyard.data._order import mix
from blockyard.data._pair_file import read_pairs
from blockyard.data._pairs import Pair, disjoint, encode
from blockyard.data._split import Fraction, sha256

PARTS = ("train", "validation", "test")


class Translation(DataModule):
    """Pairs of texts in memory, encoded once.

    Options:
        path: a file of tab-separated pairs; null makes pairs of dates, which need no file
        source: what the encoder reads: a language of the dates (en, en-GB) or iso; a column of the file, name or number
        target: what the decoder writes, likewise
        samples: training pairs at most, drawn by split_seed; null is all of them
        validation_fraction: share of all pairs that is the validation part, where the file names no split
        test_fraction: share of all pairs that is the test part, where the file names no split
        split_seed: draws the dates and deals the pairs; not the run's seed, so that all seeds share one split
        batch_size: pairs in a training step, over all processes
        eval_batch_size: pairs in a validation or test step, over all processes
        context: tokens of a target with its end symbol, at most; longer pairs are left out
        source_context: tokens of a source, at most
    """

    incidental = frozenset({"eval_batch_size"})

    def __init__(
        self,
        *,
        path: str | None = None,
        source: str = "en",
        target: str = "de",
        samples: Count | None = None,
        validation_fraction: Fraction = 0.1,
        test_fraction: Fraction = 0.1,
        split_seed: CountOrZero = 0,
        batch_size: Count = 64,
        eval_batch_size: Count = 256,
        context: Count = 64,
        source_context: Count = 64,
    ) -> None:
        if validation_fraction + test_fraction >= 1:
            raise ValueError(
                f"data.validation_fraction={validation_fraction} and data.test_fraction={test_fraction} "
                "leave nothing to train on; together they must stay under 1"
            )
        if source == target or (path is None and spelled(source) == spelled(target)):
            raise ValueError(f"data.source={source} and data.target={target} are the same; name two different sides")
        self.path = None if path is None else Path(path).expanduser()
        self.source, self.target, self.samples = source, target, samples
        self.fractions, self.split_seed = (validation_fraction, test_fraction), split_seed
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size
        self.context, self.source_context = context, source_context
        self._fingerprint: str | None = None

    @property
    def spec(self) -> DataSpec:
        """Rows of different lengths on both sides."""
        return DataSpec("text", (self.context,), variable=True, source=(self.source_context,))

    def missing(self) -> str | None:
        """Whether there is a file, or what writes dates."""
        if self.path is None:
            return unknown(self.source, self.target)
        return None if self.path.is_file() else f"no file {self.path.absolute()}; set data.path=FILE, or null for dates"

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read, split, fit the tokenizer on both sides of the training part (unless its state was loaded), encode."""
        if not isinstance(tokenizer, TextTokenizer):
            raise ValueError(f"text data needs a tokenizer of texts, not {type(tokenizer).__name__}")
        parts = self.parts()
        self._fingerprint = sha256(
            text for part in parts for text in (str(len(part)), *(side for pair in part for side in pair))
        )
        if not tokenizer.state():
            tokenizer.fit(side for pair in parts[0] for side in pair)
        tokens = tokenizer.spec(self.spec)
        if tokens.start is None or tokens.end is None:
            raise ValueError(f"{type(tokenizer).__name__} names no start and end symbol; see TokenSpec.start")
        ends, contexts = (tokens.start, tokens.end), (self.source_context, self.context)
        return Splits(*(encode(name, part, tokenizer, ends, contexts) for name, part in zip(PARTS, parts, strict=True)))

    def fingerprint(self) -> str:
        """SHA-256 of the pairs, part by part."""
        assert self._fingerprint is not None, "fingerprint() is valid after load()"
        return self._fingerprint

    def parts(self) -> list[list[Pair]]:
        """The pairs of the training, validation and test part. Raises ValueError where one is empty."""
        if self.path is None:
            pairs, named = date_pairs(self.source, self.target, self.split_seed), None
        else:
            pairs, named = read_pairs(self.path, self.source, self.target)
        order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(mix("pairs", self.split_seed)))
        if named is None:
            validation, test = (round(share * len(pairs)) for share in self.fractions)
            cut = [order[validation + test :], order[:validation], order[validation : validation + test]]
        else:
            wanted = torch.tensor(named)[order]
            cut = [order[wanted == part] for part in range(3)]
        # Each part stays in the random order, so that the first `samples` are a fair draw.
        parts = disjoint([[pairs[i] for i in part.tolist()] for part in cut])
        if self.samples is not None:
            parts[0] = parts[0][: self.samples]
        for name, part in zip(PARTS, parts, strict=True):
            if not part:
                where = "the dates" if self.path is None else self.path
                raise ValueError(f"no {name} pair is left of {where}; raise its fraction, or give more pairs")
        return parts
