"""Copy: symbols at the front of a row are to be written again at its end, after a long wait.

Source: Hochreiter and Schmidhuber 1997, Long Short-Term Memory; in this form Arjovsky, Shah and Bengio 2016,
    Unitary Evolution Recurrent Neural Networks (arXiv 1511.06464), section 4.1
Reference: the appendix of arXiv 1511.06464

    inputs   5 2 7 _ _ _ _ _ GO GO GO        _ says nothing
    target                   5  2  7
"""

from __future__ import annotations

import torch

from blockyard.contracts import Batch, Count, CountOrZero
from blockyard.data._synthetic import Draw, Made, Probe


class Copy(Probe):
    """Symbols, a wait, and as many GO as there are symbols to be told.

    Options:
        held: symbols to be kept; needs length >= 2 * held
        alphabet: how many different ones there are
    """

    def __init__(
        self,
        *,
        length: Count = 64,
        held: Count = 10,
        alphabet: Count = 8,
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
        if 2 * held > length:
            raise ValueError(f"data.held={held} symbols need data.length={length} to be {2 * held} or more")
        self.held, self.alphabet = held, alphabet

    @property
    def vocabulary(self) -> int:
        """The alphabet, the symbol that says nothing, and GO."""
        return self.alphabet + 2

    def token_name(self, symbol: int) -> str:
        """Numbers, _ and GO."""
        return {self.alphabet: "_", self.alphabet + 1: "GO"}.get(symbol, str(symbol))

    def make(self, draw: Draw) -> Made:
        """The symbols stand together at the front."""
        kept = draw.whole("symbols", self.held, self.alphabet)  # (n, held)
        return self.told(kept, self.places(draw))

    def places(self, draw: Draw) -> torch.Tensor:
        """Where each symbol stands, ascending (n, held)."""
        return torch.arange(self.held).expand(len(draw.order), -1)

    def told(self, kept: torch.Tensor, places: torch.Tensor) -> Made:
        """Rows with the symbols `kept` at their `places`, both (n, held), and the question at the end."""
        inputs = torch.full((len(kept), self.length), self.alphabet)
        inputs.scatter_(1, places, kept)
        target = torch.full_like(inputs, Batch.ignore)
        inputs[:, -self.held :], target[:, -self.held :] = self.alphabet + 1, kept
        return Made(inputs, target)
