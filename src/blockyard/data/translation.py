"""Pairs of texts, for a model that reads one and writes the other; dates in two languages by default.

Source: Unicode CLDR date formats, https://cldr.unicode.org; the task is that of Bahdanau, Cho and Bengio
    2015, Neural Machine Translation by Jointly Learning to Align and Translate (arXiv 1409.0473)
Reference: babel.dates.format_date

    source   Saturday, November 21, 2026         the encoder's sequence
    inputs   START 21. November 2026 END         the decoder's sequence, which the objective shifts

    joined   Saturday, November 21, 2026 START 21. November 2026 END     one sequence for any decoder

Without a path, with the extra `translation`: 10,000 days, each written in full, long or medium format in one
language and in long format in another. With one: a file of tab-separated columns, plain or gzipped. If its header
names a column `split` (train, val, test), that is the split; otherwise `split_seed` draws it. No text occurs in two
splits. One tokenizer reads both sides, unless source_tokenizer names another for the source; the start and end tokens
are added to the vocabulary of the target.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from blockyard.contracts import (
    BatchSize,
    Count,
    DataSpec,
    FittingValue,
    Length,
    Samples,
    Splits,
    Text,
    Tokenizer,
)
from blockyard.data.files.digest import sha256
from blockyard.data.files.pairs import Pair, fitting_sides, read_pairs
from blockyard.data.splits.fitting import equally_spaced_rows, fitting_context
from blockyard.data.splits.loaded import LoadedData
from blockyard.data.splits.order import mix
from blockyard.data.splits.pairs import JoinedSplit, disjoint, encode
from blockyard.data.splits.split import DrawnSplits
from blockyard.data.splits.text_tokenizer import ends_of, text_tokenizer

if TYPE_CHECKING:
    import babel

# Pairs of written-out dates, formatted with the Unicode Consortium's CLDR data from the package Babel.

ISO = "iso"
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
COUNT = 10_000  # of the 73,049 days in that range
FORMATS = ("full", "long", "medium")  # the short format leaves the century out


def date_pairs(source: str, target: str, seed: int) -> list[Pair]:
    """Return 10,000 different days, drawn by `seed`, each written in two languages.

    The source is in full, long or medium format, the target always in long format. The language "iso"
    writes 2026-11-21. Raises ValueError for a language that CLDR does not have.
    """
    if problem := unavailable(source, target):
        raise ValueError(problem)
    return list(_written_dates(source, target, seed))


@lru_cache(maxsize=4)  # one second of CPU, and a run is loaded again to be tested
def _written_dates(source: str, target: str, seed: int) -> tuple[Pair, ...]:
    generator = torch.Generator().manual_seed(mix("dates", seed))
    days = torch.randperm((LAST - FIRST).days + 1, generator=generator)[:COUNT].tolist()
    formats = torch.randint(len(FORMATS), (COUNT,), generator=generator).tolist()
    dates = [date.fromordinal(FIRST.toordinal() + day) for day in days]
    source_locale, target_locale = _locale(source), _locale(target)
    assert source_locale is not None
    assert target_locale is not None
    return tuple(
        (_format(day, FORMATS[index], source_locale), _format(day, "long", target_locale))
        for day, index in zip(dates, formats, strict=True)
    )


def unavailable(*languages: str) -> str | None:
    """Return why dates cannot be written in these languages, or None."""
    if importlib.util.find_spec("babel") is None:
        return "dates need the package Babel: pip install 'blockyard[translation]'; or set data.path=FILE"
    for language in languages:
        if _locale(language) is None:
            return f"CLDR has no language {language!r}; use one such as en, de, fr, es, zh, ar or {ISO}"
    return None


def normalize(language: str) -> str:
    """Return the canonical spelling of a language: en-GB and EN_gb become en_gb."""
    return language.strip().replace("-", "_").lower()


def _locale(language: str) -> str | None:
    """Return CLDR's name of a language, or None if it has none."""
    from babel import localedata

    name = normalize(language)
    if name == ISO:
        return ISO
    return localedata.normalize_locale(name)


def _format(day: date, form: str, locale: str) -> str:
    from babel.dates import format_date

    if locale == ISO:
        return day.isoformat()
    return format_date(day, form, locale=_parsed(locale))


@cache
def _parsed(locale: str) -> babel.Locale:
    from babel import Locale

    return Locale.parse(locale)


@dataclass(kw_only=True, eq=False)
class Translation(DrawnSplits, LoadedData):
    """Pairs of texts in memory, encoded once.

    Options:
        path: a file of tab-separated pairs; null generates pairs of dates, which need no file
        source: what the encoder reads: a language for dates (en, en-GB, iso), or a column of the file by its name or by
            its number from 1; a file without a header line needs numbers for both
        target: what the decoder writes, likewise
        samples: maximum training pairs, drawn by split_seed; null uses all
        train_size: training pairs to keep, before those that are too long are left out; null keeps all, and a smaller
            size selects a subset of a larger one
        validation_fraction: share of all pairs that is the validation split, if the file names none
        test_fraction: share of all pairs that is the test split, if the file names none
        split_seed: seed of the dates and of the split; independent of the run's seed, so that all seeds share them
        batch_size: pairs in a training step, over all processes
        eval_batch_size: pairs in a validation or test step, over all processes
        context: maximum tokens of a target with its end token; longer pairs are left out
        source_context: maximum tokens of a source
        joined: one sequence of source, start token and target, for a decoder; only the target is predicted
    """

    path: Text | None = None
    source: Text | Count = "en"
    target: Text | Count = "de"
    samples: Samples | None = None
    batch_size: BatchSize = 64
    eval_batch_size: BatchSize = 256
    context: Length = 64
    source_context: Length = 64
    joined: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        source, target = self._sides
        if source == target or (self.path is None and normalize(source) == normalize(target)):
            raise ValueError(f"data.source={source} and data.target={target} are the same; name two different sides")

    @property
    def spec(self) -> DataSpec:
        """Sequences of different lengths on both sides, or of both."""
        if self.joined:
            return DataSpec("text", (self.source_context + self.context,), variable=True, joined=True)
        source = DataSpec("text", (self.source_context,), variable=True)
        return DataSpec("text", (self.context,), variable=True, source=source)

    def missing(self) -> str | None:
        """Return a message that names the missing file or dates and the remedy, or None."""
        path = self._path
        if path is None:
            return unavailable(*self._sides)
        if path.is_file():
            return None
        return f"no file {path.absolute()}; set data.path=FILE, or null for dates"

    def fitting(self, length: Callable[[str], int], source_length: Callable[[str], int]) -> list[FittingValue]:
        """Return contexts that hold most texts of each side, a target with its end token."""
        if self.missing() is not None:
            return []
        sides: list[FittingValue] = []
        if self._path is None:
            pairs = date_pairs(*self._sides, self.split_seed)
        else:
            source, target = fitting_sides(self._path, *self._sides)
            if (source, target) != self._sides:
                reason = f"one of the first two columns of {self._path.name}"
                sides = [FittingValue("data.source", source, reason), FittingValue("data.target", target, reason)]
            pairs, _ = read_pairs(self._path, source, target)
        measured = [pairs[row] for row in equally_spaced_rows(len(pairs))]
        targets = [length(target) + 1 for _, target in measured]
        sources = [source_length(source) for source, _ in measured]
        return [
            *sides,
            *fitting_context("data.context", targets, "targets"),
            *fitting_context("data.source_context", sources, "sources"),
        ]

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read and encode the splits; fit the tokenizer on both training sides unless its state was loaded."""
        return self.load_both(tokenizer, tokenizer)

    def load_both(self, tokenizer: Tokenizer, source: Tokenizer) -> Splits:
        """Load the splits as `load` does, with a tokenizer for each side, fitted on that side alone."""
        tokenizer = text_tokenizer(tokenizer)
        source = text_tokenizer(source)
        splits = self.kept_of(self.splits())
        texts = []
        for split in splits:
            texts += [str(len(split)), *chain.from_iterable(split)]
        self._fingerprint = sha256(texts)
        if not tokenizer.state():
            sides = splits[0] if source is tokenizer else [pair[1:] for pair in splits[0]]
            tokenizer.fit(chain.from_iterable(sides))
        if not source.state():
            source.fit(pair[0] for pair in splits[0])
        ends = ends_of(tokenizer, self.spec)
        contexts = (self.source_context, self.context)
        named = zip(Splits._fields, splits, strict=True)
        parts = [encode(name, pairs, (source, tokenizer), ends, contexts) for name, pairs in named]
        if self.joined:
            return Splits(*map(JoinedSplit, parts))
        return Splits(*parts)

    def splits(self) -> list[list[Pair]]:
        """Return the pairs of the training, validation and test split. Raises ValueError if one is empty."""
        path = self._path
        if path is None:
            pairs, assigned = date_pairs(*self._sides, self.split_seed), None
        else:
            pairs, assigned = read_pairs(path, *self._sides)
        order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(mix("pairs", self.split_seed)))
        if assigned is None:
            validation, test = (round(share * len(pairs)) for share in (self.validation_fraction, self.test_fraction))
            indices = [order[validation + test :], order[:validation], order[validation : validation + test]]
        else:
            split_of = torch.tensor(assigned)[order]
            indices = [order[split_of == number] for number in range(3)]
        # Each split stays in random order, so that the first `samples` are a random sample.
        splits = disjoint([[pairs[i] for i in split.tolist()] for split in indices])
        if self.samples is not None:
            splits[0] = splits[0][: self.samples]
        for name, split in zip(Splits._fields, splits, strict=True):
            if not split:
                source = "the dates" if path is None else path
                raise ValueError(f"no {name} pair is left of {source}; raise its fraction, or use more pairs")
        return splits

    @property
    def _sides(self) -> tuple[str, str]:
        """The source and the target as texts, also where they are column numbers."""
        return str(self.source), str(self.target)

    @property
    def _path(self) -> Path | None:
        if self.path is None:
            return None
        return Path(os.path.expanduser(self.path))
