"""The rise that every schedule opens with, and how lengths are said."""

from __future__ import annotations

from blockyard.contracts import CountOrZero, NonNegative

# A length: an int counts updates, a float below 1 is a share of all updates.
Length = CountOrZero | NonNegative


def updates(length: int | float, total: int) -> int:
    """How many of `total` updates a length is: an int counts them, a float is a share, rounded down."""
    return length if isinstance(length, int) else int(length * total)


def check_length(key: str, length: int | float) -> None:
    """Raises ValueError for a float of 1 or more: it could mean a share or a count."""
    if isinstance(length, float) and length >= 1:
        raise ValueError(
            f"{key}={length} is neither a count nor a share; "
            f"write {int(length)} for updates, or a number below 1 for a share of the run"
        )


def rise(step: int, warmup: int) -> float | None:
    """The factor of update `step` while it warms up, or None once it has.

    Linear from 1/(warmup+1) at update 0; update number `warmup` is the first with the full rate,
    and no update is wasted on a rate of 0.
    """
    return (step + 1) / (warmup + 1) if step < warmup else None


def progress(step: int, start: int, total: int) -> float:
    """How far `step` is from `start` (0.0) to `total` (1.0); constant outside."""
    if total <= start:
        return 1.0 if step >= total else 0.0
    return min(max((step - start) / (total - start), 0.0), 1.0)
