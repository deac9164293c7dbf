"""The grammar of `expect:` in a sweep file: `pre_norm > post_norm and rope ~ alibi`.

`>` means better in the metric's direction, `>=` not worse, `~` no difference; `<` and `<=` are the same
comparisons from the other side. `and` joins comparisons, and `a > b > c` means `a > b and b > c`.

A contrast compares differences of two arms, an interaction of two factors: `(warm_post - post) > (warm_pre - pre)` says
that post-norm gains more from a warm-up than pre-norm does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from blockyard.errors import UserError, near

FORM = 'write "a > b", "a >= b", "a ~ b" (no difference) or "(a - b) > (c - d)", joined by `and`'
_NAMED = 12  # arms that a message lists
# Of a text whose words are one blank apart.
_SIGN = re.compile(r" ?(>=|<=|(?<![<>=~])[<>~](?![<>=~])) ?")
_SPACED_SIGN = re.compile(r" (>=|<=|>|<|~) ")


@dataclass(frozen=True)
class Claim:
    """One comparison of two arms, or of two differences.

    sign: >, >= or ~; `<` and `<=` swap the sides when they are read
    minus: what is subtracted from `arm` and from `other` in a contrast; None where the arms themselves are compared
    """

    arm: str
    sign: str
    other: str
    minus: tuple[str, str] | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm that it names, once."""
        return tuple(dict.fromkeys((self.arm, self.other, *(self.minus or ()))))

    @property
    def sides(self) -> tuple[str, str]:
        """What is compared with what, as it is written."""
        if self.minus is None:
            return self.arm, self.other
        return f"({self.arm} - {self.minus[0]})", f"({self.other} - {self.minus[1]})"

    def __str__(self) -> str:
        return f" {self.sign} ".join(self.sides)


def parse(text: str, arms: Iterable[str]) -> list[Claim]:
    """The comparisons of an expectation. Raises UserError naming every problem and what is allowed."""
    problems: list[str] = []
    claims = parse_expectation(text, list(arms), problems)
    if problems:
        raise UserError("\n  - ".join(problems))
    return claims


def parse_expectation(text: str, arms: list[str], problems: list[str]) -> list[Claim]:
    """The comparisons of an expectation, with problems appended.

    arms: the names that it may use; empty where they are not known
    """
    claims = []
    for part in " ".join(text.split()).split(" and "):
        # A name that comes from overrides may contain a sign; signs between blanks are never ambiguous.
        terms = _SPACED_SIGN.split(part.strip())
        terms = terms if len(terms) >= 3 else _SIGN.split(part.strip())
        names = [unquoted(term) for term in terms[::2]]
        if len(terms) < 3 or not all(names):
            problems.append(f'expect: "{part.strip()}" is not a comparison; {FORM}')
            continue
        sides = [_side(name, arms) for name in names]
        if arms:
            unknown = dict.fromkeys(name for side in sides for name in side if name not in arms)
            problems += [f"expect: {unknown_arm(name, arms)}" for name in unknown]
        for left, sign, right in zip(sides, terms[1::2], sides[1:], strict=False):
            if len(left) != len(right):
                problems.append(f'expect: "{part.strip()}" compares a difference with an arm; {FORM}')
                continue
            first, other = (right, left) if sign.startswith("<") else (left, right)
            claim = Claim(first[0], sign.replace("<", ">"), other[0], (first[1], other[1]) if len(first) > 1 else None)
            problems += [
                f'expect: "{part.strip()}" compares {same} with itself; {FORM}' for same in _twice(left, right)
            ]
            claims.append(claim)
    return claims


def _side(text: str, arms: list[str]) -> tuple[str, ...]:
    """The arm of one side of a comparison, or the two of a difference."""
    if text in arms or not (text.startswith("(") and text.endswith(")")):
        return (text,)
    # A name may contain a minus sign, but none between blanks.
    first, _, second = text[1:-1].rpartition(" - ")
    return (unquoted(first), unquoted(second)) if first and second else (text,)


def _twice(left: tuple[str, ...], right: tuple[str, ...]) -> list[str]:
    """What a comparison has on both sides, or a difference within one."""
    within = [side[0] for side in (left, right) if len(side) == 2 and side[0] == side[1]]
    return within or ([" - ".join(left)] if left == right else [])


def unquoted(name: str) -> str:
    """A name without blanks and quotes around it."""
    return name.strip().strip("`'\"")


def unknown_arm(name: object, arms: list[str]) -> str:
    """The message for an arm that does not exist."""
    nearest = near(str(name), arms)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    listed = ", ".join(arms[:_NAMED]) + (f" and {len(arms) - _NAMED} more" if len(arms) > _NAMED else "")
    return f"unknown arm {name!r}{hint} (arms: {listed})"
