"""Induction heads: the token behind a special token has to be repeated when the special token comes again.

Source: Olsson et al. 2022, In-context Learning and Induction Heads (arXiv 2209.11895); as a task Dao et al. 2023,
    Hungry Hungry Hippos (arXiv 2212.14052), table 1, and Gu and Dao 2023, Mamba (arXiv 2312.00752), section 4.1.2
Reference: the task of arXiv 2312.00752

    inputs   6 2 ! 9 4 4 1 ... 7 !        ! is the special token
    target                       9

It takes two steps: each token learns what precedes it, and the last one looks for the token that ! precedes. A model
that was trained at one length is asked at longer ones by `blockyard eval ... lengths`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from blockyard.contracts import Batch, Length, Vocabulary
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch


@dataclass(kw_only=True, eq=False)
class Induction(SyntheticTask):
    """Tokens drawn independently, the special one at a random position and at the end. Mamba's length is 256.

    Options:
        length: tokens of a sequence, 4 or more
        alphabet: number of different tokens besides the special one
    """

    length: Length = 64
    alphabet: Vocabulary = 16

    def __post_init__(self) -> None:
        if self.length < 4:
            raise ValueError(f"data.length={self.length}: the special token, what follows it, and the question need 4")

    @property
    def vocabulary(self) -> int:
        """The alphabet and the special token."""
        return self.alphabet + 1

    def token_name(self, token_id: int) -> str:
        """Return a number, or ! for the special token."""
        return "!" if token_id == self.alphabet else str(token_id)

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate tokens, and put the special one at two positions."""
        inputs = random.integers("tokens", self.length, self.alphabet)  # (n, N)
        position = random.integers("position", 1, self.length - 2)  # (n, 1)
        inputs.scatter_(1, position, self.alphabet)
        inputs[:, -1] = self.alphabet
        target = torch.full_like(inputs, Batch.ignore)
        target[:, -1] = inputs.gather(1, position + 1)[:, 0]
        return TaskBatch(inputs, target)
