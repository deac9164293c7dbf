"""Which keys a query may see by position in the sequence: the part of a mask that belongs to the mixer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Visibility:
    """What a mixer hides from its queries. The default hides nothing.

    causal: keys with a larger index than the query's
    window: keys whose index differs from the query's by `window` or more, so that 1 leaves the token itself. Prefix
        tokens are outside of it: they see every key, and every query sees them. None is no window
    strict: the key of the query's own index
    """

    causal: bool = False
    window: int | None = None
    strict: bool = False

    @property
    def unrestricted(self) -> bool:
        """Whether nothing is hidden."""
        return not self.causal and not self.strict and self.window is None


FULL = Visibility()
CAUSAL = Visibility(causal=True)
