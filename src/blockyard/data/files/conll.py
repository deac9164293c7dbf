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

In a .conllu file the words are in the second column and their tags, the parts of speech, in the fourth; ranges of words
(1-2) and words that are not written (1.1) are left out. In any other file they are in the first and in the last column.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from blockyard.errors import UserError, quoted

SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
NO_TAG = ""  # of a word that was read without its tag
_NO_WORD = re.compile(r"\d+[-.]\d+")  # ids of CoNLL-U's multiword tokens and empty nodes
_DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Sentence:
    """forms: the words; tags: one each, `NO_TAG` where none was read; line: where it begins in its file, from 1."""

    forms: tuple[str, ...]
    tags: tuple[str, ...]
    line: int = 0


def is_conll(text: str) -> bool:
    """Whether a name is that of a file with a word in each line."""
    return _suffix(Path(text)) in SUFFIXES


def read_conll(
    path: Path, token: int | None, tag: int | None, *, comments: bool = True, tagged: bool = True
) -> list[Sentence]:
    """Return the sentences of a file, plain or gzipped.

    token, tag: columns of the words and of their tags, from 1; None is that of the format
    comments: whether lines that begin with # before the first word of a sentence are left out
    tagged: whether tags are read; without them, a line needs no other column than that of its word
    Raises UserError for a file that is not UTF-8 text, and for lines that lack one of the columns.
    """
    universal = _suffix(path) == ".conllu"
    token = token or (2 if universal else 1)
    tag = tag or (4 if universal else None)
    sentences: list[Sentence] = []
    forms: list[str] = []
    tags: list[str] = []
    start = 0
    for number, line in enumerate([*_lines(path), ""], start=1):
        if not line.strip():
            if forms:
                sentences.append(Sentence(tuple(forms), tuple(tags), start))
            forms, tags = [], []
            continue
        if comments and not forms and line.startswith("#") and not line.startswith("#\t"):
            continue
        columns = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
        if columns[0] == _DOCUMENT or (universal and _NO_WORD.fullmatch(columns[0])):
            continue
        form, name = _cells(path, number, columns, token, tag if tagged else token)
        if tagged and tag is None and len(columns) <= token:
            raise UserError(f"{path}, line {number}: no column for a tag behind the word {quoted(form)}")
        start = start if forms else number
        forms.append(form)
        tags.append(name if tagged else NO_TAG)
    if not sentences:
        raise UserError(f"{path} has no sentence; a line is a word and its tag, and an empty line ends a sentence")
    return sentences


def _cells(path: Path, number: int, columns: list[str], token: int, tag: int | None) -> tuple[str, str]:
    """The word of a line and the cell of its tag, None being the last one."""
    needed = max(token, tag or 1)
    if len(columns) < needed:
        raise UserError(
            f"{path}, line {number}: {len(columns)} columns, and data.token={token}"
            f"{'' if tag in (None, token) else f' data.tag={tag}'} need {needed}; columns are separated by tabs or "
            "spaces"
        )
    form, name = columns[token - 1].strip(), columns[(tag or len(columns)) - 1].strip()
    if not form or not name:
        raise UserError(f"{path}, line {number}: {'an empty word' if not form else f'{quoted(form)} has no tag'}")
    return form, name


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()


def _lines(path: Path) -> list[str]:
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(
            path, "rt", encoding="utf-8-sig", newline=None
        ) as file:
            return [line.rstrip("\n") for line in file]
    except (UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text, plain or .gz: {error}") from error
