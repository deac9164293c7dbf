"""Reading sentences whose every word has a line of its own, with its tag in a column.

Source: Tjong Kim Sang and De Meulder 2003, Introduction to the CoNLL-2003 Shared Task (cs/0306050), whose columns are
    separated by spaces; Nivre et al. 2020, Universal Dependencies v2, https://universaldependencies.org/format.html,
    for CoNLL-U, whose columns are separated by tabs
Reference: nltk.corpus.reader.ConllCorpusReader; the package conllu

    # a comment                 before the first word of a sentence
    Ada       NNP  B-PER        columns are separated by tabs where a line has one, and by spaces otherwise
    Lovelace  NNP  I-PER
                                an empty line ends a sentence
    -DOCSTART- -X- O            marks a document in CoNLL-2003; it is skipped

Tags of spans are O, or a mark and a type. B- begins a span and I- or M- goes on with it; E- or L- ends it, and S-, U-
or W- is a span of one word (IOB, BIOES, BILOU, BMES, BMEWO).

In a .conllu file the words are in the second column and their tags, the parts of speech, in the fourth; ranges of words
(1-2) and words that are not written (1.1) are left out. In any other file they are in the first and in the last column.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blockyard.data.files.tables import named
from blockyard.data.files.unpacked import open_text
from blockyard.errors import UserError, quoted

SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
OUTSIDE = "O"  # the tag of a word in no span
SPAN_TAG = re.compile(r"([BIMELSUW])-(.+)", re.DOTALL)  # the mark and the type of a span's tag
NO_TAG = ""  # of a word that was read without its tag
_NO_WORD = re.compile(r"\d+[-.]\d+")  # ids of CoNLL-U's multiword tokens and empty nodes
_DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Sentence:
    """forms: the words; tags: one each, `NO_TAG` where none was read; lines: of the words in their file, from 1."""

    forms: tuple[str, ...]
    tags: tuple[str, ...]
    lines: tuple[int, ...] = ()


def is_conll(text: str) -> bool:
    """Return whether a file of this name has a word in each line."""
    return _suffix(Path(text)) in SUFFIXES


def read_conll(
    path: Path, token: int | None, tag: int | None, *, comments: bool = True, tagged: bool = True
) -> list[Sentence]:
    """Return the sentences of a file, plain or gzipped.

    token, tag: columns of the words and of their tags, from 1; None is the column of the format
    comments: whether lines that begin with # before the first word of a sentence are left out
    tagged: whether tags are read; without them, a line needs no other column than its word
    Raises UserError for a file that is not UTF-8 text, and for lines that lack one of the columns.
    """
    universal = _suffix(path) == ".conllu"
    token = token or (2 if universal else 1)
    tag = tag or (4 if universal else None)
    sentences: list[Sentence] = []
    forms: list[str] = []
    tags: list[str] = []
    lines: list[int] = []
    for number, line in enumerate([*_lines(path), ""], start=1):
        if not line.strip():
            if forms:
                sentences.append(Sentence(tuple(forms), tuple(tags), tuple(lines)))
            forms, tags, lines = [], [], []
            continue
        if comments and not forms and line.startswith("#") and not line.startswith("#\t"):
            continue
        # Not `split()`: other white space, such as a no-break space, may be a part of a word.
        columns = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
        if columns[0] == _DOCUMENT or (universal and _NO_WORD.fullmatch(columns[0])):
            continue
        form, name = _cells(path, number, columns, token, tag if tagged else token)
        if tagged and tag is None and len(columns) <= token:
            raise UserError(f"{path}, line {number}: no column for a tag behind the word {quoted(form)}")
        forms.append(form)
        lines.append(number)
        tags.append(name if tagged else NO_TAG)
    if not sentences:
        raise UserError(f"{path} has no sentence; a line is a word and its tag, and an empty line ends a sentence")
    return sentences


def refuse_mixed_tags(files: Mapping[Path, Sequence[Sentence]]) -> None:
    """Raise UserError naming the tags that are not of spans, with their lines, where most tags are.

    Most tags are of spans if more tags, or the tags of more words, are of spans than are not. O is neither.

    files: the sentences of each
    """
    counts: Counter[str] = Counter()
    for sentences in files.values():
        for sentence in sentences:
            counts.update(sentence.tags)
    del counts[OUTSIDE]
    other = [tag for tag in counts if not SPAN_TAG.fullmatch(tag)]
    other_count = sum(counts[tag] for tag in other)
    if not other or (2 * len(other) >= len(counts) and 2 * other_count >= counts.total()):
        return
    problems = []
    for path, sentences in files.items():
        lines: dict[str, list[int]] = {tag: [] for tag in other}
        for sentence in sentences:
            for line, tag in zip(sentence.lines, sentence.tags, strict=True):
                if tag in lines:
                    lines[tag].append(line)
        problems += [f"{path}, {named(lines[tag])}: the tag {quoted(tag)}" for tag in other if lines[tag]]
    if problems:
        raise UserError(
            f"{'; '.join(problems)}. Most other tags are of spans: O, or B-, I-, M-, E-, L-, S-, U- or W- and a type; "
            "correct these"
        )


def _cells(path: Path, number: int, columns: list[str], token: int, tag: int | None) -> tuple[str, str]:
    """Return the word of a line and the cell of its tag. tag: its column; None is the last one"""
    needed = max(token, tag or 1)
    if len(columns) < needed:
        options = f"data.token={token}"
        if tag not in (None, token):
            options += f" data.tag={tag}"
        raise UserError(
            f"{path}, line {number}: {len(columns)} columns, and {options} need {needed}; columns are separated by "
            "tabs or spaces"
        )
    form = columns[token - 1].strip()
    name = columns[(tag or len(columns)) - 1].strip()
    if not form:
        raise UserError(f"{path}, line {number}: an empty word")
    if not name:
        raise UserError(f"{path}, line {number}: {quoted(form)} has no tag")
    return form, name


def _suffix(path: Path) -> str:
    if path.suffix.lower() == ".gz":
        path = path.with_suffix("")
    return path.suffix.lower()


def _lines(path: Path) -> list[str]:
    try:
        with open_text(path) as file:
            return [line.rstrip("\n") for line in file]
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text, plain or .gz: {error}") from error
