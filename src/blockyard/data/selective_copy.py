"""Selective copying: the symbols to be written again stand at random places, in their order.

Source: Gu and Dao 2023, Mamba: Linear-Time Sequence Modeling with Selective State Spaces (arXiv 2312.00752),
    section 3.1 and 4.1.1; after Jing et al. 2019, Gated Orthogonal Recurrent Units (arXiv 1706.02761)
Reference: state-spaces/s4 src/dataloaders/synthetics.py (copying, variable)

    inputs   _ 5 _ _ 2 _ 7 _ GO GO GO        _ says nothing
    target                   5  2  7

A filter that depends on the place alone, such as a convolution, cannot tell what to keep.
"""

from __future__ import annotations

from torch import Tensor

from blockyard.contracts import Count, CountOrZero
from blockyard.data._synthetic import Draw
from blockyard.data.copy import Copy


class SelectiveCopy(Copy):
    """As `copy`, with the wait between the symbols. The paper has 16 symbols in rows of 4,096.

    Options:
        held: symbols to be kept; needs length >= 2 * held
        alphabet: how many different ones there are
    """

    def __init__(
        self,
        *,
        length: Count = 64,
        held: Count = 16,
        alphabet: Count = 16,
        samples: Count = 20_000,
        eval_samples: Count = 1_000,
        data_seed: CountOrZero = 0,
        batch_size: Count = 64,
        eval_batch_size: Count = 256,
    ) -> None:
        super().__init__(
            length=length,
            held=held,
            alphabet=alphabet,
            samples=samples,
            eval_samples=eval_samples,
            data_seed=data_seed,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
        )

    def places(self, draw: Draw) -> Tensor:
        """Different places before the question, ascending (n, held)."""
        return draw.distinct("places", self.held, self.length - self.held).sort(1).values
