"""A sequence whose last tokens can be taken back, from its cache too."""

from __future__ import annotations

from typing import Any

from blockyard.contracts import Memory, Model
from blockyard.errors import UserError
from blockyard.generate.stats import Stats
from blockyard.generate.stepper import Stepper


class RetractingStepper(Stepper):
    """One sequence that grows by guesses.

    The cache is cropped if every layer's can be. Otherwise (a recurrent state) `mark` keeps a snapshot, and `retract`
    continues from it: tokens that stay are then read a second time, in a separate pass of `mark`.

    most: the largest number of tokens that are taken back. Raises UserError for a cache that cannot be taken back.
    """

    def __init__(
        self,
        model: Model,
        sequence: list[int],
        most: int,
        *,
        cache: bool,
        stats: Stats,
        memory: Memory | None = None,
        end: int | None = None,
    ) -> None:
        self._most = most
        self._mark: tuple[Any, int] | None = None  # a snapshot, and the number of tokens that it holds
        super().__init__(model, [sequence], cache=cache, memory=memory, stats=stats, end=end)
        if self._cache is not None and not self._cache.croppable:
            try:
                self._cache.snapshot()
            except ValueError as error:
                raise UserError(f"draft= needs caches that can be taken back: {error}; use cache=false") from error

    def _new_cache(self) -> Any:
        cache = super()._new_cache()
        if cache is not None:
            cache.keep_spare(self._most)
        return cache

    @property
    def room(self) -> int | None:
        """The number of tokens that can follow before the sequence has to be cut; None if it never is."""
        if self.limit is None:
            return None
        return self.limit - len(self.sequences[0])

    def mark(self) -> None:
        """Keep all tokens so far for good. Call it before tokens that may be taken back."""
        self.start_clock()
        self.cut()
        if self._cache is None or self._cache.croppable:
            return
        # A model that sees the source reads it in one pass, up to the start token: it stays whole.
        whole = getattr(self.model, "sees", "past") == "source" and self.sequences[0][-1] == self.model.ctx.tokens.start
        if len(self.sequences[0]) - self._cached > 1 and not whole:
            last = self.sequences[0].pop()
            self.last_scores(1)
            self.sequences[0].append(last)
        self._mark = (self._cache.snapshot(), self._cached)

    def retract(self, count: int) -> None:
        """Take back the last `count` tokens, which came after the last `mark`."""
        if not count:
            return
        del self.sequences[0][-count:]
        surplus = self._cached - len(self.sequences[0])
        if self._cache is None or surplus <= 0:
            return
        if self._cache.croppable:
            self._cache.crop(surplus)
            self._cached -= surplus
        else:
            assert self._mark is not None, "mark() comes before retract()"
            cache, self._cached = self._mark
            self._cache = cache.snapshot()
