"""A search over whole numbers for the size whose count is nearest to a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

_GAP = 8  # neighbouring sizes that are tried to find one that a model can be built with


@dataclass
class SizeSearch:
    """A search over whole numbers n for the count nearest to a target; counts grow with n.

    count: of the model of size n, None where it cannot be built; largest: the largest n
    """

    count: Callable[[int], int | None]
    target: int
    largest: float
    counts: dict[int, int | None] = field(default_factory=dict)

    def solve(self, start: int) -> int | None:
        """The nearest number; None where no model can be built near `start`."""
        low = high = self._buildable(start, 1, start + _GAP)
        if low is None or high is None:
            return None
        while self._over(low) and (less := self._buildable(int(low / 1.4), 1, low - 1)):
            low = less
        while not self._over(high) and (more := self._buildable(int(high * 1.4), high + 1, int(self.largest))):
            high = more
        while high - low > 1:
            middle = self._buildable((low + high) // 2, low + 1, high - 1)
            if middle is None:
                break
            low, high = (low, middle) if self._over(middle) else (middle, high)
        off = {n: abs(count - self.target) for n, count in self.counts.items() if count is not None}
        return min(off, key=lambda n: (off[n], n))

    def _count(self, n: int) -> int | None:
        if n not in self.counts:
            self.counts[n] = self.count(n)
        return self.counts[n]

    def _over(self, n: int) -> bool:
        count = self._count(n)
        return count is not None and count > self.target

    def _buildable(self, near: int, smallest: int, largest: int) -> int | None:
        """The number nearest to `near`, within bounds, that a model can be built with; a few are tried."""
        near = min(max(near, smallest), largest)
        candidates = range(max(smallest, near - _GAP), min(largest, near + _GAP) + 1)
        return next((n for n in sorted(candidates, key=lambda n: abs(n - near)) if self._count(n) is not None), None)
