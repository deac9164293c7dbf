"""Spans of words from their tags, as in CoNLL's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from blockyard.data.files.conll import OUTSIDE, SPAN_TAG

# Marks of a tag: B-, S-, U- and W- begin a span, E-, L-, S-, U- and W- end one.
OPENS = 1
CLOSES = 2
_MARKS = {"B": OPENS, "I": 0, "M": 0, "E": CLOSES, "L": CLOSES} | dict.fromkeys("SUW", OPENS | CLOSES)


@dataclass(frozen=True)
class Tags:
    """The tags of a data set. names: V names, in the order of their numbers"""

    names: tuple[str, ...]

    @cached_property
    def spans(self) -> bool:
        """Return whether the tags are of spans: every one is O, or a `SPAN_TAG`."""
        parts = [name == OUTSIDE or bool(SPAN_TAG.fullmatch(name)) for name in self.names]
        return all(parts) and any(name != OUTSIDE for name in self.names)

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The types of spans, sorted; if tags are of single words, the tags themselves."""
        kinds = {self._parts(name)[1] for name in self.names}
        return tuple(sorted(kinds - {""}))

    @cached_property
    def kinds(self) -> list[int]:
        """The type of each tag by its number, -1 for O, (V,)."""
        numbers = {"": -1} | {kind: number for number, kind in enumerate(self.types)}
        return [numbers[self._parts(name)[1]] for name in self.names]

    @cached_property
    def marks(self) -> list[int]:
        """`OPENS`, `CLOSES`, both or neither for each tag, (V,)."""
        return [self._parts(name)[0] for name in self.names]

    def _parts(self, name: str) -> tuple[int, str]:
        """Return the marks and the type of a tag, "" for O."""
        match = SPAN_TAG.fullmatch(name)
        if not self.spans or match is None:
            kind = "" if self.spans else name
            return OPENS | CLOSES, kind
        return _MARKS[match[1]], match[2]

    def spans_of(self, tags: Sequence[int]) -> list[tuple[int, int, str]]:
        """Return the spans of a sentence from the numbers of its tags: first word, word behind the last, type."""
        row = torch.tensor([list(tags)], dtype=torch.int64)
        kinds, ends = span_ends(torch.tensor(self.kinds)[row], torch.tensor(self.marks)[row])
        spans = zip(kinds[0].tolist(), ends[0].tolist(), strict=True)
        return [(start, end, self.types[kind]) for start, (kind, end) in enumerate(spans) if kind >= 0]


def span_ends(kinds: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the type of the span that begins at each word, or -1, and the word behind its end: 2 x (B, N).

    As in conlleval, I- behind O, behind another type or behind the end of a span begins one as B- does.

    kinds: (B, N), the type of each word's tag, -1 for O and behind the end
    marks: (B, N), of `OPENS` and `CLOSES`
    """
    inside = kinds >= 0
    before = F.pad(kinds, (1, 0), value=-1)[:, :-1]
    closed = F.pad(marks & CLOSES, (1, 0))[:, :-1] != 0  # the word before ends its span
    begins = inside & ((marks & OPENS != 0) | closed | (before != kinds))
    columns = torch.arange(kinds.shape[1], device=kinds.device).expand_as(kinds)
    stops = columns.masked_fill(~begins & inside, kinds.shape[1])  # no span goes on at such a word
    nearest = stops.flip(1).cummin(1).values.flip(1)  # the first such word from each word on
    return kinds.masked_fill(~begins, -1), F.pad(nearest, (0, 1), value=kinds.shape[1])[:, 1:]
