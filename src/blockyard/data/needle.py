"""Needle in a haystack: one fact in a long text of other sentences, and a question about it at the end.

Source: Kamradt 2023, Needle In A Haystack (github.com/gkamradt/LLMTest_NeedleInAHaystack); Hsieh et al. 2024, RULER
    (arXiv 2404.06654), section 3.1, several needles of which one is asked for; here from a small grammar
Reference: the tasks NIAH of arXiv 2404.06654

    the cat sees . the number of anna is 4 0 7 . the dogs fear . ... what is the number of anna ? ? ?
    |- haystack -| |---------- needle ---------|                 |---------- question ----------|     target 4 0 7

The haystack has no name and no digit; with `needles` above 1 the others are about other names, so that it is the name
that has to be looked for. Slices are the quarters of the text in which the needle lies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le

from blockyard.contracts import Batch, Because, DataSpec, Length
from blockyard.data.splits.synthetic import EMPTY, SampleRandom, SyntheticTask, TaskBatch, right_aligned

NOUNS = ("cat", "dogs", "bird", "boys", "girl", "kings", "queen", "bears", "horse", "goats", "nurse", "pilots")
VERBS = ("sees", "fears", "likes", "knows", "hears", "helps", "calls", "finds")
NAMES = ("anna", "boris", "clara", "david", "emma", "felix", "greta", "hugo", "irene", "jonas", "karin", "leo")
WORDS = ("the", ".", "number", "of", "is", "what", "?")
THE, STOP, NUMBER, OF, IS, WHAT, ASK = range(len(WORDS))
# The first token id of each kind of words.
NOUN = len(WORDS)
VERB = NOUN + len(NOUNS)
NAME = VERB + len(VERBS)
DIGIT = NAME + len(NAMES)
SENTENCE = 4  # words of a sentence of the haystack
SLICES = ("first_quarter", "second_quarter", "third_quarter", "last_quarter")

Needles = Annotated[int, Ge(1), Le(len(NAMES)), Because("each is about another name")]
Digits = Annotated[int, Ge(1), Le(16), Because("each digit is a word of the needle")]


@dataclass(kw_only=True, eq=False)
class Needle(SyntheticTask):
    """Sentences of four words with needles between them. What does not fill a sentence is full stops at the start.

    Options:
        length: words of a sequence, the question included
        needles: facts in a text, each about another name; one of them is asked for
        digits: words of each answer
    """

    length: Length = 128
    needles: Needles = 1
    digits: Digits = 3

    def __post_init__(self) -> None:
        least = self._question + self.needles * self._needle + SENTENCE
        if self.length < least:
            raise ValueError(
                f"data.length={self.length} is too short for {self.needles} needles of {self._needle} words, a "
                f"question and a sentence: {least} words"
            )

    @property
    def _needle(self) -> int:
        return 6 + self.digits

    @property
    def _question(self) -> int:
        return 6 + self.digits

    @property
    def vocabulary(self) -> int:
        """Words, names and digits."""
        return DIGIT + 10

    def token_name(self, token_id: int) -> str:
        """Return the word."""
        return [*WORDS, *NOUNS, *VERBS, *NAMES, *map(str, range(10))][token_id]

    @property
    def spec(self) -> DataSpec:
        """Return the splits of the task, with slices by the depth of the needle."""
        return replace(super().spec, slices=SLICES)

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate sentences and needles as columns of one width, then their order."""
        samples = len(random.order)
        size = self._needle
        text = self.length - self._question  # words in front of the question
        sentences = (text - self.needles * size) // SENTENCE
        hay = torch.full((samples, sentences, size), EMPTY)
        hay[:, :, 0] = THE
        hay[:, :, 3] = STOP
        hay[:, :, 1] = NOUN + random.integers("nouns", sentences, len(NOUNS))
        hay[:, :, 2] = VERB + random.integers("verbs", sentences, len(VERBS))
        names = NAME + random.distinct("names", self.needles, len(NAMES))  # (n, K); the first one is asked for
        digits = DIGIT + random.integers("digits", self.needles * self.digits, 10).view(samples, self.needles, -1)
        facts = torch.empty(samples, self.needles, size, dtype=torch.int64)
        for index, token in enumerate((THE, NUMBER, OF, names, IS)):
            facts[:, :, index] = torch.as_tensor(token)
        facts[:, :, 5:-1] = digits
        facts[:, :, -1] = STOP
        units = torch.cat([facts, hay], 1)  # (n, units, size)
        order = random.distinct("order", units.shape[1], units.shape[1])  # (n, units)
        sizes = torch.where(order < self.needles, size, SENTENCE)  # (n, units)
        front = units.gather(1, order[:, :, None].expand(-1, -1, size)).flatten(1)
        # Counted from the end, because units are pushed to the right.
        starts = text - sizes.flip(1).cumsum(1).flip(1)  # (n, units)
        depth = starts.masked_fill(order != 0, 0).sum(1)  # (n,), start of unit 0, the needle that is asked for
        question = torch.full((samples, self._question), ASK)
        for index, token in enumerate((WHAT, IS, THE, NUMBER, OF, names[:, 0])):
            question[:, index] = torch.as_tensor(token)
        inputs = torch.cat([front, question], 1)
        target = torch.full_like(inputs, Batch.ignore)
        target[:, -self.digits :] = digits[:, 0]
        inputs, target = right_aligned(inputs, target, self.length, STOP)
        return TaskBatch(inputs, target, slice=(4 * depth // text).clamp_max(3))
