"""Compression: one vector has to hold a whole sequence, and every token is read off it again.

Source: Poli et al. 2024, Mechanistic Design and Scaling of Hybrid Architectures (MAD, arXiv 2403.17844), section 3.1
Reference: athms/mad-lab mad/data/instances.py (generate_compression_instance), without its noise

    inputs   6 2 9 4 4 1 !       ! is the compression token; head=reconstruct reads its vector alone
    target   6 2 9 4 4 1

A head that reads each token at its own position would only have to copy it: the task is for head=reconstruct.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from blockyard.contracts import Batch, DataSpec, Length, Vocabulary
from blockyard.data.splits.synthetic import SampleRandom, SyntheticTask, TaskBatch


@dataclass(kw_only=True, eq=False)
class Compression(SyntheticTask):
    """Tokens drawn independently, with the compression token at the end. All of them are targets.

    Options:
        length: tokens of a sequence, with the compression token; 2 or more
        alphabet: number of different tokens besides it
    """

    length: Length = 32
    alphabet: Vocabulary = 15

    def __post_init__(self) -> None:
        if self.length < 2:
            raise ValueError(f"data.length={self.length}: a token and the compression token need 2")

    @property
    def vocabulary(self) -> int:
        """The alphabet and the compression token."""
        return self.alphabet + 1

    @property
    def spec(self) -> DataSpec:
        """Token ids with a target at each position; not resizable, because longer sequences have more to hold."""
        return replace(super().spec, resizable=False)

    def token_name(self, token_id: int) -> str:
        """Return a number, or ! for the compression token."""
        return "!" if token_id == self.alphabet else str(token_id)

    def generate(self, random: SampleRandom) -> TaskBatch:
        """Generate tokens, which are their own targets."""
        tokens = random.integers("tokens", self.length - 1, self.alphabet)  # (n, N - 1)
        end = torch.full((len(tokens), 1), self.alphabet)
        target = torch.cat([tokens, torch.full_like(end, Batch.ignore)], 1)
        return TaskBatch(torch.cat([tokens, end], 1), target)
