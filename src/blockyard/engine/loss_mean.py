"""The mean training loss between two rows of the log, kept on the device."""

from __future__ import annotations

import torch
from torch import Tensor


class LossMean:
    """Sum and number of the batch losses since the last `take`; reading them is the only wait for the device."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None
        self._count = 0

    def add(self, loss: Tensor) -> None:
        """Add a detached loss. The sum is in float32, the dtype in which a checkpoint stores it."""
        loss = loss.float()
        self._sum = loss if self._sum is None else self._sum + loss
        self._count += 1

    def take(self) -> Tensor | None:
        """The mean since the last call, on the device; None where there was no batch."""
        if self._sum is None:
            return None
        mean = self._sum / self._count
        self._sum, self._count = None, 0
        return mean

    def state(self, strategy: object = None) -> tuple[float, int]:
        """Sum and number, to be saved. With a Lightning strategy of several processes all of them must call."""
        if self._sum is None:
            return 0.0, self._count
        # One process saves for all: the mean of the sums, from which each of them then continues.
        total = self._sum if strategy is None else strategy.reduce(self._sum, reduce_op="mean")  # type: ignore[attr-defined]
        return float(total), self._count

    def load_state(self, total: float, count: int, device: torch.device) -> None:
        """The inverse of `state`."""
        self._sum = torch.tensor(total, device=device) if count else None
        self._count = count
