"""Shared parts of sentences with a tag for each word: words as pieces, which are the tokens, and a split of them.

    words     Ada            Lovelace          .
    tags      B-PER          I-PER             O
    pieces    A   da         Love  lace        .      tokens of each word, cut alone
    target    1   1 + V      2     2 + V       0      tag at the first piece of a word, V more at its others

The pieces of a word do not depend on its neighbours: words are encoded one by one, with a blank in front of all but the
first. A piece that is the blank alone, as of a tokenizer of characters, belongs to no word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Batch, TextTokenizer
from blockyard.data.files.conll import Sentence
from blockyard.data.splits.columns import ColumnSplit, Ragged
from blockyard.errors import UserError, quoted


@dataclass(frozen=True)
class Pieces:
    """A sentence as token ids.

    first, last: the indices of the first and the last piece of each word
    forms: the number of words that are read; fewer than the sentence has where it is longer than the context
    whole: the tokens of the sentence before it is cut
    """

    ids: list[int]
    first: list[int]
    last: list[int]
    whole: int

    @property
    def forms(self) -> int:
        """The number of words that are read."""
        return len(self.first)


class Cutter:
    """Cuts sentences into pieces, and remembers the pieces of each word."""

    def __init__(self, tokenizer: TextTokenizer, context: int) -> None:
        self.tokenizer, self.context = tokenizer, context
        blank = tokenizer.encode(" ")
        self._blank = blank[0] if len(blank) == 1 else None
        self._known: dict[tuple[str, bool], tuple[list[int], int]] = {}

    def __call__(self, forms: Sequence[str], where: str) -> Pieces:
        """Return the pieces of a sentence, of as many whole words as the context has room for.

        Raises UserError for a word without a token, and for a first word that is longer than the context.
        """
        ids: list[int] = []
        first: list[int] = []
        last: list[int] = []
        whole = 0
        for number, form in enumerate(forms):
            pieces, blanks = self._of(form, follows=number > 0)
            cut = whole > len(ids)  # an earlier word had no room
            whole += len(pieces)
            if cut:
                continue
            if len(pieces) == blanks:
                raise UserError(
                    f"{where}: {type(self.tokenizer).__name__} leaves no token of the word {quoted(form)}; use another "
                    "tokenizer, or leave the sentence out"
                )
            if whole > self.context:
                continue
            first.append(len(ids) + blanks)
            ids += pieces
            last.append(len(ids) - 1)
        if not first:
            raise UserError(f"{where}: the word {quoted(forms[0])} has more than data.context={self.context} tokens")
        return Pieces(ids, first, last, whole)

    def _of(self, form: str, *, follows: bool) -> tuple[list[int], int]:
        """Return the pieces of a word, and how many of the first ones belong to the blank before it."""
        key = (form, follows)
        if key not in self._known:
            pieces = self.tokenizer.encode(f" {form}" if follows else form)
            blanks = 0
            # The id of a blank may also be the unknown token, for a blank and a beginning that no token has.
            if follows and pieces and pieces[0] == self._blank and pieces[1:] == self.tokenizer.encode(form):
                blanks = 1
            self._known[key] = pieces, blanks
        return self._known[key]


class TaggedSplit(ColumnSplit):
    """One split of sentences: the inputs are token ids, the target as in the module's docstring.

    sentences: as they were read; names: of the tags, in the order of their numbers
    tag_counts: (V,) int64, the words of the training split with each tag
    """

    def __init__(
        self, sentences: Sequence[Sentence], pieces: Sequence[Pieces], names: Sequence[str], tag_counts: Tensor
    ) -> None:
        ids = Ragged.of([sentence.ids for sentence in pieces])
        numbers = {name: number for number, name in enumerate(names)}
        target = torch.full((len(ids.stream),), Batch.ignore, dtype=torch.int32)
        for start, sentence, cut in zip(ids.start.tolist(), sentences, pieces, strict=True):
            for first, last, tag in zip(cut.first, cut.last, sentence.tags, strict=False):
                target[start + first] = numbers[tag]
                target[start + first + 1 : start + last + 1] = numbers[tag] + len(names)
        super().__init__(ids, Ragged(target, ids.lengths, fill=Batch.ignore))
        self.sentences, self.pieces, self.names = list(sentences), list(pieces), tuple(names)
        self.tag_counts = tag_counts

    def read_forms(self, sample: int) -> tuple[str, ...]:
        """Return the words of a sentence that a model reads, each of which has a target."""
        return self.sentences[sample].forms[: self.pieces[sample].forms]

    def read_tags(self, sample: int) -> tuple[str, ...]:
        """Return their tags."""
        return self.sentences[sample].tags[: self.pieces[sample].forms]


def bracketed(forms: Sequence[str], spans: Sequence[tuple[int, int, str]]) -> str:
    """Return a sentence with its spans in brackets, each with its type: "[Ada Lovelace]PER wrote".

    spans: (first word, the one behind the last, type), in order
    """
    texts = list(forms)
    for start, stop, kind in spans:
        texts[start] = f"[{texts[start]}"
        texts[stop - 1] = f"{texts[stop - 1]}]{kind}"
    return " ".join(texts)
