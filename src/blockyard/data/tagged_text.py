"""Sentences with a tag for each word, of files as CoNLL's, or generated ones with names and dates by default.

Source: the layout and the task of Tjong Kim Sang and De Meulder 2003, Introduction to the CoNLL-2003 Shared Task:
    Language-Independent Named Entity Recognition (cs/0306050); the generated sentences are our own
Reference: datasets.load_dataset("conll2003")

    Mr  Lincoln  left  Lincoln  Ltd    in  May     1850    .
    O   B-PER    O     B-ORG    I-ORG  O   B-DATE  I-DATE  O

Without a path: 1,500 sentences of a small grammar with persons, places, organisations and dates. Most of their names
stand for all of the first three, `May` for a month and for a person, a number for a year and for a count: the words
around them say which. Every third name is invented, so that many of those in the test split are new.
With one: a file with a word in each line, see `data/files/conll.py`, which `split_seed` splits sentence by sentence; or
a folder of such files, whose names have train, dev (or val, valid, testa) and test (or testb) in them.
"""

from __future__ import annotations

import logging
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from blockyard.contracts import (
    BatchSize,
    Count,
    DataSpec,
    FittingValue,
    Length,
    Splits,
    Text,
    TextTokenizer,
    Tokenizer,
)
from blockyard.data.files.class_names import warn_of_names
from blockyard.data.files.conll import OUTSIDE, SUFFIXES, Sentence, is_conll, read_conll, refuse_mixed_tags
from blockyard.data.files.digest import sha256
from blockyard.data.files.file_names import data_files
from blockyard.data.files.split_names import SPLIT_NUMBERS
from blockyard.data.splits.fitting import equally_spaced_rows, fitting_context
from blockyard.data.splits.loaded import LoadedData, forget, read_once
from blockyard.data.splits.order import mix
from blockyard.data.splits.row_splits import split_rows, together, warn_of_cut, warn_of_duplicates
from blockyard.data.splits.split import DrawnSplits, Fraction
from blockyard.data.splits.tagged import Cutter, Pieces, TaggedSplit
from blockyard.data.splits.text_tokenizer import text_tokenizer
from blockyard.errors import UserError, fold

log = logging.getLogger("blockyard")
MOST_TAGS = 1000
_PARTS = {**SPLIT_NUMBERS, "testa": 1, "testb": 2}  # in the names of files
COUNT = 1500
INVENTED = 3  # every third name
FIRST = "Ada Ben Clara David Emma Felix Grace Hugo Ida June Karl May Nora Otto Paula Ruth Simon Tessa Victoria Will"
NAMES = (
    "Alexandria Augusta Austin Avery Bolton Bristol Brittany Burton Camden Charlotte Chelsea Chester Clayton Cleveland "
    "Clinton Dallas Darwin Denver Devon Easton England Everett Florence Ford France Georgia Hadley Hamilton Harlow "
    "Holland Houston Ireland Jackson Jordan Kent Kingston Lancaster Lincoln Logan London Lorraine Madison Marshall "
    "Melbourne Milan Nelson Newton Orlando Oxford Paris Phoenix Porter Preston Quincy Raleigh Regina Ross Salem "
    "Sheffield Shelby Siena Stafford Stanford Sutton Sydney Trenton Tyler Vernon Verona Victoria Virginia Warner "
    "Washington Wayne Wellington Wesley Whitney Windsor Winston York"
)
ONSETS, VOWELS, ENDS = "b br c d dr f g gr h k l m n p r s st t tr v z", "a e i o u ai ea ou", "n r l s th nd ck m x"
MONTHS = "January March April May June August October December"
DAYS = "Monday Tuesday Thursday Friday Sunday"
CHOICES = {  # the words that a word in capitals of a sentence stands for, besides spans
    "THING": "sheep chairs letters tickets apples bricks lamps coats pianos boats",
    "KIND": "quiet rich old strange cheerful proud busy modest famous grey young lively",
    "HUMAN": (
        "woman man girl doctor pianist baker judge nurse poet sailor teacher farmer painter widow cousin tailor student"
    ),
    "SITE": (
        "town village harbour island valley city suburb parish port county hamlet resort district peninsula oasis marsh"
    ),
    "FIRM": (
        "bank brewery newspaper shipyard club airline publisher union factory choir theatre school laboratory studio"
    ),
    "DOES": "smiled slept sang wept nodded whispered blushed frowned sneezed laughed yawned prayed stumbled married",
    "FEELS": "flooded mapped rebuilt besieged evacuated conquered settled abandoned photographed liberated paved",
    "TRADES": "merged expanded diversified liquidated restructured advertised recruited exported franchised dissolved",
}
SENTENCES = (
    "PER lives in LOC .",
    "PER moved from LOC to LOC on DATE .",
    "Mr PER and Mrs PER met PER near LOC .",
    "On DATE , PER left ORG .",
    "PER , who was born in LOC , sold NUMBER THING to ORG .",
    "Shares of ORG fell on DATE , said PER .",
    "ORG hired NUMBER workers in LOC .",
    "The mayor of LOC thanked PER for NUMBER THING .",
    "NAME=PER , a KIND HUMAN with NUMBER THING , is known since DATE .",
    "NAME=LOC , a KIND SITE with NUMBER THING , is known since DATE .",
    "NAME=ORG , a KIND FIRM with NUMBER THING , is known since DATE .",
    "When NAME=PER DOES , PER paid ORG .",
    "When NAME=LOC was FEELS , PER left LOC .",
    "When NAME=ORG TRADES , PER left ORG .",
    "The KIND HUMAN NAME=PER saw the KIND SITE NAME=LOC in DATE .",
    "The KIND FIRM NAME=ORG bought NUMBER THING from the KIND HUMAN NAME=PER .",
    "Nobody in LOC had heard of PER before DATE .",
    "DATE was cold in LOC .",
    "ORG opened a shop in LOC in DATE , and PER ran it .",
    "In LOC , NUMBER THING may cost more than in LOC .",
    "They march from LOC to LOC with NUMBER THING .",
    "NUMBER THING from LOC reached ORG on DATE .",
    "The streets of LOC were empty when PER came back .",
    "An engineer at ORG wrote to PER in DATE .",
)
Words = list[tuple[str, str]]  # words with their tags


@dataclass(kw_only=True, eq=False)
class TaggedText(DrawnSplits, LoadedData):
    """Sentences in memory, encoded word by word.

    Options:
        path: a file with a word and its tag in each line, plain or .gz, or a folder of such files, one a split; null
            generates sentences with names and dates, which need no file
        token: the column of the words, from 1; null is the first, in a .conllu file the second
        tag: the column of the tags, from 1; null is the last, in a .conllu file the fourth, the parts of speech
        comments: leave lines out that begin with # before the first word of a sentence
        context: tokens of a sentence that a model reads; further words are neither read nor counted
        validation_fraction: share of all sentences that is the validation split, where no file is one
        test_fraction: share of all sentences that is the test split, likewise
        split_seed: seed of the generated sentences and of the drawn splits; independent of the run's seed, so that all
            seeds share them
        batch_size: sentences in a training step, over all processes
        eval_batch_size: sentences in a validation or test step, over all processes
    """

    path: Text | None = None
    token: Count | None = None
    tag: Count | None = None
    comments: bool = True
    context: Length = 128
    test_fraction: Fraction = 0.2
    batch_size: BatchSize = 32
    eval_batch_size: BatchSize = 256
    _test: TaggedSplit | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token is not None and self.token == self.tag:
            raise ValueError(f"data.token={self.token} and data.tag={self.tag} are one column; name two different ones")
        if self.path is None and (self.token or self.tag or not self.comments):
            raise ValueError("data.token, data.tag and data.comments are about files; set data.path, or leave them out")

    @property
    def spec(self) -> DataSpec:
        """Sentences of different lengths; without the file, the number of tags is not known."""
        names = self.names if self.missing() is None else ()
        return DataSpec(
            "text", (self.context,), variable=True, target="tags", classes=len(names) or None, class_names=names
        )

    def missing(self) -> str | None:
        """Return a message that names the missing file and the remedy, or None."""
        if self.path is None or self._path.is_file():
            return None
        if not self._path.is_dir():
            return f"nothing at {self._path.absolute()}; set data.path=FILE, or null for generated sentences"
        absent = [name for name, files in zip(Splits._fields, self._by_split(), strict=True) if not files]
        if not absent:
            return None
        return (
            f"{self._path.absolute()} has no file of the {fold(absent)} split; the names of a folder's files have "
            f"train, dev and test in them, and end in one of {', '.join(SUFFIXES)}, .txt or .tsv, also with .gz"
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tags of all splits, sorted, O before all others. Raises UserError as `read_conll` does."""
        names = set(_tag_counts(chain(*self.parts)))
        if len(names) < 2 or len(names) > MOST_TAGS:
            raise UserError(
                f"{self.path}: {len(names)} different tags; expected 2 to {MOST_TAGS}. data.tag names their column"
            )
        return tuple(sorted(names, key=lambda name: (name != OUTSIDE, name)))

    @cached_property
    def parts(self) -> list[list[Sentence]]:
        """The sentences by split, or all in one list where the splits are to be drawn."""
        return read_once(self, "parts", self._files(), self._read)

    def fitting(self, length: Callable[[str], int], source_length: Callable[[str], int]) -> list[FittingValue]:
        """Return a context that holds most sentences."""
        if self.missing() is not None:
            return []
        sentences = list(chain(*self.parts))
        measured = [sentences[row] for row in equally_spaced_rows(len(sentences))]
        lengths = [sum(map(length, sentence.forms)) for sentence in measured]
        return fitting_context("data.context", lengths, "sentences")

    def load(self, tokenizer: Tokenizer) -> Splits:
        """Read and encode the sentences; fit the tokenizer on the training ones unless its state was loaded."""
        tokenizer = text_tokenizer(tokenizer)
        names = self.names
        splits = self.kept_of(self._splits())
        contents: list[str] = []
        for split in splits:
            contents.append(str(len(split)))
            contents += ["\n".join((*sentence.forms, *sentence.tags)) for sentence in split]
        self._fingerprint = sha256(contents)
        if not tokenizer.state():
            tokenizer.fit(" ".join(sentence.forms) for sentence in splits[0])
        counts = _tag_counts(splits[0])
        new = sorted(_tag_counts(chain(*splits[1:])).keys() - counts.keys())
        if new:
            log.warning("%s: no word of the training split has the tag %s, which others have", self.path, fold(new))
        tag_counts = torch.tensor([counts[name] for name in names])
        cut = Cutter(tokenizer, self.context)
        parts = [self._split(sentences, cut, tag_counts) for sentences in splits]
        warn_of_cut([pieces.whole for part in parts for pieces in part.pieces], self.context, "sentences")
        self._test = parts[2]
        forget()  # this module holds the sentences, and nobody else needs them again
        return Splits(*parts)

    def test_texts(self, samples: Sequence[int], tokenizer: TextTokenizer) -> list[str]:
        """Return the words of each sentence that a model reads, with blanks between."""
        assert self._test is not None, "test_texts() is valid after load()"
        return [" ".join(self._test.read_forms(sample)) for sample in samples]

    def _split(self, sentences: list[Sentence], cut: Cutter, tag_counts: Tensor) -> TaggedSplit:
        source = self.path or "the sentences"
        pieces: list[Pieces] = []
        for sentence in sentences:
            pieces.append(cut(sentence.forms, f"{source}, line {min(sentence.lines, default=0)}"))
        return TaggedSplit(sentences, pieces, self.names, tag_counts)

    def _splits(self) -> list[list[Sentence]]:
        """Return the sentences of the training, validation and test split."""
        if len(self.parts) > 1:
            forms = [[sentence.forms for sentence in part] for part in self.parts]
            warn_of_duplicates(self._path, forms, "sentences")
            return self.parts
        sentences = self.parts[0]
        units, repeated = together([sentence.forms for sentence in sentences])
        if repeated and self.path is not None:
            log.warning(
                "%s: %d of %d sentences repeat an earlier one; they stay in its split",
                *(self.path, repeated, len(sentences)),
            )
        drawn = split_rows(
            self.path or "the sentences",
            torch.zeros(len(sentences), dtype=torch.int64),
            None,
            (self.validation_fraction, self.test_fraction),
            self.split_seed,
            units,
        )
        return [[sentences[i] for i in split.tolist()] for split in drawn]

    def _read(self) -> list[list[Sentence]]:
        if self.path is None:
            return [_generated(self.split_seed)]
        by_split = [[self._path]] if self._path.is_file() else self._by_split()
        sentences = {}
        for file in chain(*by_split):
            sentences[file] = read_conll(file, self.token, self.tag, comments=self.comments)
        refuse_mixed_tags(sentences)
        warn_of_names(self._path, dict(_tag_counts(chain(*sentences.values()))))
        return [[sentence for file in files for sentence in sentences[file]] for files in by_split]

    def _files(self) -> list[Path]:
        if self.path is None:
            return []
        if self._path.is_file():
            return [self._path]
        return list(chain(*self._by_split()))

    def _by_split(self) -> list[list[Path]]:
        """Return the files of each split of a folder, by their names."""
        by_split: list[list[Path]] = [[], [], []]
        files = (file for file in self._path.iterdir() if file.is_file() and _is_text(file.name))
        for file in data_files(self._path, files):
            parts = [part for part in re.split(r"[\W_\d]+", file.name.lower()) if part in _PARTS]
            if parts:
                by_split[_PARTS[parts[0]]].append(file)
        return by_split

    @property
    def _path(self) -> Path:
        assert self.path is not None
        return Path(os.path.expanduser(self.path))


class _Writer:
    """Draws sentences of the grammar."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(mix("tagged", seed))
        self.slots: dict[str, Callable[[], list[str]]] = {
            "PER": self._person,
            "LOC": self._place,
            "ORG": self._organisation,
            "DATE": self._date,
        }

    def sentence(self) -> Sentence:
        """Return one sentence with tags B-, I- and O."""
        drawn: Words = []
        for part in self._one_of(SENTENCES).split():
            name, _, kind = part.partition("=")
            if kind or name in self.slots:
                span = [self._name()] if kind else self.slots[name]()
                drawn.append((span[0], f"B-{kind or name}"))
                drawn += [(form, f"I-{kind or name}") for form in span[1:]]
            elif name == "NUMBER":
                drawn.append((str(1700 + self._below(320)), OUTSIDE))
            else:
                drawn.append((self._one_of(CHOICES.get(name, name).split()), OUTSIDE))
        forms, tags = zip(*drawn, strict=True)
        return Sentence(forms, tags)

    def _below(self, count: int) -> int:
        return int(self.random.random() * count)

    def _one_of(self, choices: Sequence[str]) -> str:
        return choices[self._below(len(choices))]

    def _name(self) -> str:
        if self._below(INVENTED):
            return self._one_of(NAMES.split())
        syllables = [self._one_of(ONSETS.split()) + self._one_of(VOWELS.split()) for _ in range(2 + self._below(2))]
        return ("".join(syllables) + self._one_of(ENDS.split())).capitalize()

    def _person(self) -> list[str]:
        first = [self._one_of(FIRST.split())]
        return self._any([first, [*first, self._name()], [*first, self._name()], [self._name()]])

    def _place(self) -> list[str]:
        name = self._name()
        return self._any([[name], [name], ["New", name], ["Lake", name], [name, "County"]])

    def _organisation(self) -> list[str]:
        name = self._name()
        firm = self._any([[name, "Ltd"], [name, "&", "Sons"], [name, "United"]])
        return self._any([[name], [name], firm, ["Bank", "of", name], ["University", "of", name]])

    def _date(self) -> list[str]:
        day, year = str(1 + self._below(28)), str(1700 + self._below(320))
        month = self._one_of(MONTHS.split())
        return self._any(
            [[year], [month, year], [day, month, year], [month, day, ",", year], ["last", self._one_of(DAYS.split())]]
        )

    def _any(self, choices: Sequence[list[str]]) -> list[str]:
        return choices[self._below(len(choices))]


@lru_cache(maxsize=1)  # every rule about data asks for their spec, whose tags these sentences have
def _generated(seed: int) -> list[Sentence]:
    """Return the sentences of a seed, which nobody may change."""
    writer = _Writer(seed)
    return [writer.sentence() for _ in range(COUNT)]


def _tag_counts(sentences: Iterable[Sentence]) -> Counter[str]:
    """Return the number of words with each tag."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(sentence.tags)
    return counts


def _is_text(name: str) -> bool:
    """Return whether a file of a folder may have a word in each line, by its name."""
    plain = name.lower().removesuffix(".gz")
    return is_conll(name) or plain.endswith((".txt", ".tsv")) or plain.rpartition(".")[2] in _PARTS
