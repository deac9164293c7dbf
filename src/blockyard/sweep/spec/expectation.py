"""The grammar of `expect:` in a sweep file: `pre_norm > post_norm and rope ~ alibi`.

`>` means better in the metric's direction, `>=` not worse, `~` no difference; `<` and `<=` are the same
comparisons from the other side. `and` joins comparisons, and `a > b > c` means `a > b and b > c`.

A contrast compares differences of two arms, an interaction of two factors: `(warm_post - post) > (warm_pre - pre)` says
that post-norm gains more from a warm-up than pre-norm does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from blockyard.errors import UserError, did_you_mean

FORM = 'write "a > b", "a >= b", "a ~ b" (no difference) or "(a - b) > (c - d)", joined by `and`'
_NAMED = 12  # arms that a message lists
# Both are for a text with single blanks.
_SIGN = re.compile(r" ?(>=|<=|(?<![<>=~])[<>~](?![<>=~])) ?")
_SPACED_SIGN = re.compile(r" (>=|<=|>|<|~) ")


@dataclass(frozen=True)
class Claim:
    """One comparison of two arms, or of two differences.

    sign: >, >= or ~; `<` and `<=` swap the sides when they are read
    minus: in a contrast, the arms that are subtracted from `arm` and from `other`; None for a comparison of two arms
    """

    arm: str
    sign: str
    other: str
    minus: tuple[str, str] | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm of the comparison, once."""
        return tuple(dict.fromkeys((self.arm, self.other, *(self.minus or ()))))

    @property
    def sides(self) -> tuple[str, str]:
        """The two sides of the comparison, as they are written."""
        if self.minus is None:
            return self.arm, self.other
        return f"({self.arm} - {self.minus[0]})", f"({self.other} - {self.minus[1]})"

    @property
    def sums(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The arms whose sums are compared: (a - b) - (c - d) = (a + d) - (b + c).

        Sums are as large as the metric, so that differences within its rounding count as equal, as between arms.
        """
        if self.minus is None:
            return (self.arm,), (self.other,)
        b, d = self.minus
        return (self.arm, d), (b, self.other)

    def __str__(self) -> str:
        return f" {self.sign} ".join(self.sides)


def parse(text: str, arms: Iterable[str]) -> list[Claim]:
    """Return the comparisons of an expectation. Raises UserError with every problem and the allowed forms."""
    problems: list[str] = []
    claims = parse_expectation(text, list(arms), problems)
    if problems:
        raise UserError("\n  - ".join(problems))
    return claims


def parse_expectation(text: str, arms: list[str], problems: list[str]) -> list[Claim]:
    """Return the comparisons of an expectation; append problems to `problems`.

    arms: the names that it may use; empty where they are not known
    """
    claims = []
    for clause in " ".join(text.split()).split(" and "):
        clause = clause.strip()
        # A name that comes from overrides may contain a sign; signs between blanks are never ambiguous.
        terms = _SPACED_SIGN.split(clause)
        if len(terms) < 3:
            terms = _SIGN.split(clause)
        names = [unquoted(term) for term in terms[::2]]
        if len(terms) < 3 or not all(names):
            problems.append(f'expect: "{clause}" is not a comparison; {FORM}')
            continue
        sides = [_side(name, arms) for name in names]
        if arms:
            unknown = [name for name in dict.fromkeys(itertools.chain(*sides)) if name not in arms]
            problems += [f"expect: {unknown_arm(name, arms)}" for name in unknown]
        for left, sign, right in zip(sides, terms[1::2], sides[1:], strict=False):
            if len(left) != len(right):
                problems.append(f'expect: "{clause}" compares a difference with an arm; {FORM}')
                continue
            first, other = (right, left) if sign.startswith("<") else (left, right)
            minus = (first[1], other[1]) if len(first) > 1 else None
            # A difference of an arm with itself is the narrower mistake, so that alone is reported.
            repeated = [side[0] for side in (left, right) if len(side) == 2 and side[0] == side[1]]
            if left == right and not repeated:
                repeated = [" - ".join(left)]
            problems += [f'expect: "{clause}" compares {side} with itself; {FORM}' for side in repeated]
            claims.append(Claim(first[0], sign.replace("<", ">"), other[0], minus))
    return claims


def _side(text: str, arms: list[str]) -> tuple[str, ...]:
    """Return the arm of one side of a comparison, or the two arms of a difference."""
    if text in arms or not (text.startswith("(") and text.endswith(")")):
        return (text,)
    # A name may contain a minus sign, but none between blanks.
    first, _, second = text[1:-1].rpartition(" - ")
    if first and second:
        return (unquoted(first), unquoted(second))
    return (text,)


def unquoted(name: str) -> str:
    """Return a name without blanks and quotes around it."""
    return name.strip().strip("`'\"")


def unknown_arm(name: object, arms: list[str]) -> str:
    """Return the message for an arm that does not exist."""
    listed = ", ".join(arms[:_NAMED])
    if len(arms) > _NAMED:
        listed += f" and {len(arms) - _NAMED} more"
    return f"unknown arm {name!r}{did_you_mean(str(name), arms)} (arms: {listed})"
