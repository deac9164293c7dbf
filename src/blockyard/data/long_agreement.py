"""Agreement at a distance: "the cat , who the dogs see and the birds fear , is".

Source: Linzen, Dupoux and Goldberg 2016, Assessing the Ability of LSTMs to Learn Syntax-Sensitive Dependencies
    (arXiv 1611.01368), sections 2 and 4, the number of the verb with attractors between; here from a small grammar
Reference: the task of arXiv 1611.01368; its sentences are from Wikipedia, these are made

    the boy sees . the cat , who the dogs see and the birds fear ,  ->  is
    |-- others --| |subject|     |----------- clauses ---------|

Every clause agrees within itself, and each noun's number is drawn anew, so that half of the nouns
between subject and verb are of the other number. The last comma asks for `is` or `are`.
"""

from __future__ import annotations

import torch

from blockyard.contracts import Batch, Count, CountOrZero
from blockyard.data._synthetic import Draw, Made, Probe

NOUNS = ("cat", "dog", "bird", "boy", "girl", "king", "queen", "bear", "horse", "goat", "nurse", "pilot", "farmer")
VERBS = ("see", "fear", "like", "know", "hear", "help", "call", "find")
WORDS = ("the", ",", "who", "and", ".", "is", "are")
THE, COMMA, WHO, AND, STOP, IS, ARE = range(len(WORDS))
PERIOD = 4  # words of each unit: the NOUN VERB and


class LongAgreement(Probe):
    """Units of four words; the subject's is followed by clauses up to the verb that is asked.

    Options:
        length: words of a row, a multiple of 4, 8 or more
        clauses: clauses between subject and verb; null draws from 1 to as many as there is room for
    """

    def __init__(
        self,
        *,
        length: Count = 64,
        clauses: Count | None = None,
        samples: Count = 20_000,
        eval_samples: Count = 1_000,
        data_seed: CountOrZero = 0,
        batch_size: Count = 64,
        eval_batch_size: Count = 256,
    ) -> None:
        super().__init__(
            length=length,
            samples=samples,
            eval_samples=eval_samples,
            data_seed=data_seed,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
        )
        if length % PERIOD or length < 2 * PERIOD:
            near = max(2, round(length / PERIOD)) * PERIOD
            raise ValueError(f"data.length={length} must be a multiple of {PERIOD} from {2 * PERIOD}, such as {near}")
        if clauses is not None and clauses > length // PERIOD - 1:
            raise ValueError(f"data.clauses={clauses}: data.length={length} has room for {length // PERIOD - 1}")
        self.clauses = clauses

    @property
    def words(self) -> list[str]:
        """Every symbol's word."""
        nouns = [form for noun in NOUNS for form in (noun, f"{noun}s")]
        verbs = [form for verb in VERBS for form in (f"{verb}s", verb)]
        return [*WORDS, *nouns, *verbs]

    def token_name(self, symbol: int) -> str:
        """The word."""
        return self.words[symbol]

    @property
    def vocabulary(self) -> int:
        """Singular and plural of nouns and verbs, and a few words between."""
        return len(WORDS) + 2 * (len(NOUNS) + len(VERBS))

    def make(self, draw: Draw) -> Made:
        """Each unit on its own, then the commas and stops that join them."""
        units = self.length // PERIOD
        plural = draw.whole("numbers", units, 2)  # (n, U)
        nouns = len(WORDS) + 2 * draw.whole("nouns", units, len(NOUNS)) + plural
        verbs = len(WORDS) + 2 * len(NOUNS) + 2 * draw.whole("verbs", units, len(VERBS)) + plural
        drawn = draw.whole("subject", 1, units - 1)  # (n, 1), the unit that holds the subject
        subject = drawn if self.clauses is None else torch.full_like(drawn, units - 1 - self.clauses)
        unit = torch.arange(units)  # (U,)
        third = torch.where(unit == subject, COMMA, verbs)
        fourth = torch.where(unit == subject, WHO, torch.where(unit < subject, STOP, AND))
        fourth[:, -1] = COMMA
        inputs = torch.stack([torch.full_like(nouns, THE), nouns, third, fourth], 2).flatten(1)  # (n, N)
        target = torch.full_like(inputs, Batch.ignore)
        target[:, -1] = IS + plural.gather(1, subject)[:, 0]
        return Made(inputs, target)
