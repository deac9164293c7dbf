"""Agreement at a distance: "the cat , who the dogs see and the birds fear , is".

Source: Linzen, Dupoux and Goldberg 2016, Assessing the Ability of LSTMs to Learn Syntax-Sensitive Dependencies
    (arXiv 1611.01368), sections 2 and 4, the number of the verb with attractors between; here from a small grammar
Reference: the task of arXiv 1611.01368; its sentences are from Wikipedia, these are generated

    the boy sees . the cat , who the dogs see and the birds fear ,  ->  is
    |-- others --| |subject|     |----------- clauses ---------|

Every clause agrees within itself, and the number of each noun is drawn independently, so that half of the
nouns between subject and verb have the other number. The target at the last comma is `is` or `are`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockyard.contracts import Batch, Length
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch

NOUNS = ("cat", "dog", "bird", "boy", "girl", "king", "queen", "bear", "horse", "goat", "nurse", "pilot", "farmer")
VERBS = ("see", "fear", "like", "know", "hear", "help", "call", "find")
WORDS = ("the", ",", "who", "and", ".", "is", "are")
THE, COMMA, WHO, AND, STOP, IS, ARE = range(len(WORDS))
PERIOD = 4  # words of a unit: the NOUN VERB and


@dataclass(kw_only=True, eq=False)
class LongAgreement(SyntheticTask):
    """Units of four words; clauses follow the subject's unit up to the verb that has to be predicted.

    Options:
        length: words of a sequence, a multiple of 4, 8 or more
        clauses: clauses between subject and verb; null draws from 1 to as many as fit
    """

    clauses: Length | None = None

    def __post_init__(self) -> None:
        length = self.length
        fit = length // PERIOD - 1  # units besides the subject's
        if length % PERIOD or length < 2 * PERIOD:
            near = max(2, round(length / PERIOD)) * PERIOD
            raise ValueError(f"data.length={length} must be a multiple of {PERIOD} from {2 * PERIOD}, such as {near}")
        if self.clauses is not None and self.clauses > fit:
            raise ValueError(f"data.clauses={self.clauses}: data.length={length} has room for {fit}")

    @property
    def vocabulary_words(self) -> list[str]:
        """The word of each token id."""
        # The singular before the plural, so that a form is 2 * word + number.
        forms = list(WORDS)
        for noun in NOUNS:
            forms += [noun, f"{noun}s"]
        for verb in VERBS:
            forms += [f"{verb}s", verb]
        return forms

    def token_name(self, token_id: int) -> str:
        """Return the word."""
        return self.vocabulary_words[token_id]

    @property
    def vocabulary(self) -> int:
        """Singular and plural of nouns and verbs, and a few function words."""
        return len(WORDS) + 2 * (len(NOUNS) + len(VERBS))

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate each unit by itself, then the words that join them."""
        units = self.length // PERIOD
        plural = random.integers("numbers", units, 2)  # (n, U)
        nouns = len(WORDS) + 2 * random.integers("nouns", units, len(NOUNS)) + plural
        verbs = len(WORDS) + 2 * len(NOUNS) + 2 * random.integers("verbs", units, len(VERBS)) + plural
        subject = random.integers("subject", 1, units - 1)  # (n, 1), the unit that holds the subject
        if self.clauses is not None:
            subject = torch.full_like(subject, units - 1 - self.clauses)
        unit = torch.arange(units)  # (U,)
        third = torch.where(unit == subject, COMMA, verbs)
        fourth = torch.where(unit == subject, WHO, torch.where(unit < subject, STOP, AND))
        fourth[:, -1] = COMMA  # the verb follows the last comma
        inputs = torch.stack([torch.full_like(nouns, THE), nouns, third, fourth], 2).flatten(1)  # (n, N)
        target = torch.full_like(inputs, Batch.ignore)
        target[:, -1] = IS + plural.gather(1, subject)[:, 0]
        return TaskBatch(inputs, target)
