"""The linear warm-up that every schedule starts with, and lengths in steps or shares of the run."""

from __future__ import annotations

from blockyard.contracts import CountOrZero, NonNegative

# An int counts steps; a float below 1 is a share of all steps.
Length = CountOrZero | NonNegative


def to_steps(length: int | float, total: int) -> int:
    """A length in steps, of `total`: an int counts them, a float is a share, rounded down."""
    return length if isinstance(length, int) else int(length * total)


def check_length(key: str, length: int | float) -> None:
    """Raise ValueError for a float of 1 or more, which could mean a share or a count."""
    if isinstance(length, float) and length >= 1:
        raise ValueError(
            f"{key}={length} is ambiguous; use {int(length)} for a number of steps, or a number below 1 for a share "
            "of the run"
        )


def warmup_factor(step: int, warmup: int) -> float | None:
    """The factor at `step` during warm-up, or None after it.

    Linear from 1 / (warmup + 1) at step 0, so that no step has a rate of 0; step `warmup` is the first at full rate.
    """
    return (step + 1) / (warmup + 1) if step < warmup else None


def progress(step: int, start: int, total: int) -> float:
    """The position of `step` between `start` (0.0) and `total` (1.0), clamped to that range."""
    if total <= start:
        return 1.0 if step >= total else 0.0
    return min(max((step - start) / (total - start), 0.0), 1.0)
