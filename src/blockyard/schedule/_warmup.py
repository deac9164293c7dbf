"""The linear warm-up at the start of every schedule, and lengths in steps or shares of the run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from blockyard.contracts import CountOrZero, NonNegative, Schedule
from blockyard.contracts.inherited_options import with_options_of

# An int counts steps; a float below 1 is a share of all steps.
Length = CountOrZero | NonNegative


def to_steps(length: int | float, total: int) -> int:
    """Return a length in steps. An int counts steps, a float is a share of `total`, rounded down."""
    if isinstance(length, int):
        return length
    return int(length * total)


def check_length(key: str, length: int | float) -> None:
    """Raise ValueError for a float of 1 or more, which could mean a share or a count."""
    if isinstance(length, float) and length >= 1:
        raise ValueError(
            f"{key}={length} is ambiguous; use {int(length)} for a number of steps, or a number below 1 for a share "
            "of the run"
        )


def progress(step: int, start: int, total: int) -> float:
    """Return the position of `step` between `start` (0.0) and `total` (1.0), clamped to that range."""
    if total <= start:
        return 1.0 if step >= total else 0.0
    return min(max((step - start) / (total - start), 0.0), 1.0)


class WarmedUp(Schedule):
    """A schedule that begins with a linear warm-up. Subclasses implement `after_warmup`.

    Options:
        warmup: length of the linear warm-up, in steps (an int) or as a share of the run (a float below 1)
    """

    def __init__(self, *, warmup: Length = 0.05) -> None:
        check_length("schedule.warmup", warmup)
        self.warmup = warmup

    def factor(self, step: int, total: int) -> float:
        """Return the factor on the learning rate at `step` (from 0) of `total`.

        Linear from 1 / (warmup + 1) at step 0, so that no step has a rate of 0; step `warmup` is the first at full
        rate.
        """
        warmup = to_steps(self.warmup, total)
        if step < warmup:  # step 0 must not have a rate of zero, which would waste it
            return (step + 1) / (warmup + 1)
        return self.after_warmup(step, warmup, total)

    @abstractmethod
    def after_warmup(self, step: int, warmup: int, total: int) -> float:
        """Return the factor at `step`, of `total`, after `warmup` steps of warm-up."""

    def remarks(self, total: int) -> Iterator[str]:
        """Yield a sentence if the run ends before the warm-up does."""
        warmup = to_steps(self.warmup, total)
        if warmup >= total:
            highest = self.factor(total - 1, total)
            yield (
                f"schedule.warmup={self.warmup} is not over when the run ends after {total} steps: the learning rate "
                f"reaches {highest:.2g} of what the optimizer is set to; use a share of the run, such as "
                "schedule.warmup=0.05"
            )


class Decaying(WarmedUp):
    """A schedule that decays after its warm-up.

    Options:
        final: factor at the end of the run
    """

    @with_options_of(WarmedUp)
    def __init__(self, *, final: NonNegative = 0.0, **options: Any) -> None:
        super().__init__(**options)
        self.final = final
