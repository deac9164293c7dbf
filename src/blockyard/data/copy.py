"""Copy: tokens at the start of a sequence have to be repeated at its end, after a long delay.

Source: Hochreiter and Schmidhuber 1997, Long Short-Term Memory; in this form Arjovsky, Shah and Bengio 2016,
    Unitary Evolution Recurrent Neural Networks (arXiv 1511.06464), section 4.1
Reference: the appendix of arXiv 1511.06464

    inputs   5 2 7 _ _ _ _ _ GO GO GO        _ is a blank
    target                   5  2  7
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockyard.contracts import Batch, Length, Vocabulary
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch

FEWEST = 64  # different tasks: with fewer, a split that holds a tenth of them may get none


@dataclass(kw_only=True, eq=False)
class Copy(SyntheticTask):
    """Tokens to remember, blanks, and one GO for each token to repeat.

    Options:
        held: tokens to remember; needs length >= 2 * held
        alphabet: number of different tokens to remember; needs alphabet ** held >= 64
    """

    held: Length = 10
    alphabet: Vocabulary = 8

    def __post_init__(self) -> None:
        if 2 * self.held > self.length:
            raise ValueError(f"data.held={self.held} needs data.length={self.length} to be {2 * self.held} or more")
        different = self.alphabet**self.held
        if different < FEWEST:
            raise ValueError(
                f"data.alphabet={self.alphabet} and data.held={self.held} give {different} different tasks, too few to "
                f"hold some out for validation and test; {FEWEST} or more are needed"
            )

    @property
    def vocabulary(self) -> int:
        """The alphabet, the blank, and GO."""
        return self.alphabet + 2

    def token_name(self, token_id: int) -> str:
        """Return a number, _ or GO."""
        return {self.alphabet: "_", self.alphabet + 1: "GO"}.get(token_id, str(token_id))

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate sequences that start with the tokens to remember, or hold them at other `positions`."""
        tokens = random.integers("symbols", self.held, self.alphabet)  # (n, held)
        inputs = torch.full((len(tokens), self.length), self.alphabet)
        inputs.scatter_(1, self.positions(random), tokens)
        target = torch.full_like(inputs, Batch.ignore)
        inputs[:, -self.held :] = self.alphabet + 1
        target[:, -self.held :] = tokens
        return TaskBatch(inputs, target)

    def positions(self, random: SampleRandom) -> torch.Tensor:
        """Return the position of each token to remember, ascending (n, held)."""
        return torch.arange(self.held).expand(len(random.order), -1)
