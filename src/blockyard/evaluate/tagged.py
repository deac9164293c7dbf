"""Predictions of a tagging run: the sentences of a split with their spans, and the tags of new sentences.

source      Ada Lovelace wrote from Lincoln .
reference   [Ada Lovelace]PER wrote from [Lincoln]LOC .
written     [Ada]PER Lovelace wrote from [Lincoln]LOC .
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blockyard.contracts import Batch, Objective, Split, TextTokenizer
from blockyard.data.files.conll import Sentence, is_conll, read_conll
from blockyard.data.files.file_names import new_file
from blockyard.data.rows.new_inputs import texts_of
from blockyard.data.splits.columns import Ragged
from blockyard.data.splits.tagged import Cutter, Pieces, TaggedSplit, bracketed
from blockyard.errors import UserError
from blockyard.evaluate.written import Written
from blockyard.objective._tags import Tags
from blockyard.objective.tag import Tag
from blockyard.runs.load import Loaded

log = logging.getLogger("blockyard")

BATCH = 64  # sentences in a forward pass

_WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")  # as files have them: marks are words of their own


class TagRecorder:
    """Collects the tagged sentences of a pass over a split; `evaluate(..., observe=recorder)` calls it."""

    def __init__(self, objective: Tag, split: TaggedSplit) -> None:
        self.objective, self.split = objective, split
        self._texts: dict[int, tuple[str, str, str]] = {}

    @classmethod
    def of(cls, objective: Objective, split: Split) -> TagRecorder | None:
        """Return a recorder for runs that tag sentences, None for others."""
        if isinstance(objective, Tag) and isinstance(split, TaggedSplit):
            return cls(objective, split)
        return None

    def __call__(self, prediction: Tensor, batch: Batch) -> None:
        """Collect a prepared batch. prediction: (B, N, V); samples of index -1 are dummies."""
        assert isinstance(batch.target, Tensor)
        assert batch.sample is not None
        samples = zip(batch.sample.tolist(), prediction.argmax(-1).cpu(), batch.target.cpu(), strict=True)
        for sample, written, there in samples:
            if sample < 0:
                continue
            counted = there != Batch.ignore
            forms = self.split.read_forms(sample)
            reference = shown(forms, there[counted].tolist(), self.objective.tags)
            prediction_text = shown(forms, written[counted].tolist(), self.objective.tags)
            self._texts[sample] = (" ".join(forms), reference, prediction_text)

    def result(self, part: str) -> Written:
        """Return the collected sentences in the order of the split. part: "test", "val" or "train"."""
        texts = [self._texts[sample] for sample in sorted(self._texts)]
        return Written(part, None, {}, texts, whole=len(texts) == len(self.split))


def shown(forms: Sequence[str], tags: Sequence[int], of: Tags) -> str:
    """Return a sentence with its spans in brackets, or with the tag behind each word where tags are not of spans."""
    if of.spans:
        return bracketed(forms, of.spans_of(tags))
    return " ".join(f"{form}/{of.names[tag]}" for form, tag in zip(forms, tags, strict=True))


@dataclass(frozen=True)
class TaggedSentence:
    """A new sentence. forms: its words; tags, probabilities: of each word; text: with its spans in brackets"""

    forms: tuple[str, ...]
    tags: tuple[str, ...]
    probabilities: tuple[float, ...]
    text: str


def tag_inputs(loaded: Loaded, inputs: Sequence[str], column: str | None) -> list[TaggedSentence]:
    """Return the tags of the words of new sentences.

    inputs: texts, files with one in each line and tables, which are cut into words and marks; files as in CoNLL, a word
        in each line, whose tags are not read
    Raises UserError for an input that cannot be read.
    """
    tokenizer, objective = loaded.tokenizer, loaded.objective
    assert isinstance(objective, Tag)
    assert isinstance(tokenizer, TextTokenizer)
    sentences = [sentence for text in inputs for sentence in _sentences(loaded, text, column)]
    most = loaded.model.ctx.tokens.max_len
    cut = Cutter(tokenizer, most)
    pieces = [cut(sentence.forms, f"input {number}") for number, sentence in enumerate(sentences, start=1)]
    long = sum(part.forms < len(sentence.forms) for part, sentence in zip(pieces, sentences, strict=True))
    if long:
        log.warning(
            "%d of %d sentences have more than %d tokens; their further words get no tag", long, len(sentences), most
        )
    variable = loaded.model.ctx.tokens.variable
    # A model of sequences of one length knows no padding, so each sentence is a batch.
    size = BATCH if variable else 1
    token_ids = Ragged.of([part.ids for part in pieces])
    probabilities: list[Tensor] = []
    for order in torch.arange(len(pieces)).split(size):
        ids, lengths = token_ids.take(order)
        with torch.no_grad():
            prediction = loaded.model(Batch(ids, lengths=lengths if variable else None))  # (B, N, V)
        probabilities += prediction.double().softmax(-1)
    parts = zip(probabilities, pieces, sentences, strict=True)
    return [_tagged(*part, objective) for part in parts]


def _tagged(probabilities: Tensor, pieces: Pieces, sentence: Sentence, objective: Tag) -> TaggedSentence:
    """Return a sentence with the most probable tag of each word. probabilities: (N, V) of its tokens"""
    tokens = pieces.last if objective.reads_last else pieces.first
    best = probabilities[tokens].max(-1)
    tags = best.indices.tolist()
    names = tuple(objective.tags.names[tag] for tag in tags)
    forms = sentence.forms[: pieces.forms]
    return TaggedSentence(forms, names, tuple(best.values.tolist()), shown(forms, tags, objective.tags))


def _sentences(loaded: Loaded, text: str, column: str | None) -> list[Sentence]:
    if is_conll(text):
        token = getattr(loaded.data, "token", None)
        comments = getattr(loaded.data, "comments", True)
        return read_conll(new_file(text), token, None, comments=comments, tagged=False)
    sentences = [Sentence(tuple(_WORD.findall(line)), ()) for line in texts_of(loaded.data, [text], column)]
    empty = [str(number) for number, sentence in enumerate(sentences, start=1) if not sentence.forms]
    if empty:
        raise UserError(f"{text[:40]!r}: text {', '.join(empty[:9])} has no word")
    return sentences
