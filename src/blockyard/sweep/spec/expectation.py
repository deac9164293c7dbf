"""The grammar of `expect:` in a sweep file: `pre_norm > post_norm and rope ~ alibi`.

`>` means better in the metric's direction, `>=` not worse, `~` no difference; `<` and `<=` are the same
comparisons from the other side. `and` joins comparisons, and `a > b > c` means `a > b and b > c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from blockyard.errors import UserError, near

FORM = 'write "a > b", "a >= b" or "a ~ b" (no difference), joined by `and`'
_NAMED = 12  # arms that a message lists
_SIGN = re.compile(r"\s*(>=|<=|(?<![<>=~])[<>~](?![<>=~]))\s*")
_SPACED_SIGN = re.compile(r"\s+(>=|<=|>|<|~)\s+")


@dataclass(frozen=True)
class Claim:
    """One comparison of two arms.

    sign: >, >= or ~; `<` and `<=` swap the arms when they are read
    """

    arm: str
    sign: str
    other: str

    def __str__(self) -> str:
        return f"{self.arm} {self.sign} {self.other}"


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
    for part in re.split(r"\s+and\s+", text.strip()):
        # A name that comes from overrides may contain a sign; signs between blanks are never ambiguous.
        terms = _SPACED_SIGN.split(part.strip())
        terms = terms if len(terms) >= 3 else _SIGN.split(part.strip())
        names = [term.strip().strip("`'\"") for term in terms[::2]]
        if len(terms) < 3 or not all(names):
            problems.append(f'expect: "{part.strip()}" is not a comparison; {FORM}')
            continue
        if arms:
            problems += [f"expect: {unknown_arm(name, arms)}" for name in dict.fromkeys(names) if name not in arms]
        for left, sign, right in zip(names, terms[1::2], names[1:], strict=False):
            if left == right:
                problems.append(f'expect: "{part.strip()}" compares {left} with itself; {FORM}')
            swapped = sign.startswith("<")
            claims.append(Claim(right, sign.replace("<", ">"), left) if swapped else Claim(left, sign, right))
    return claims


def unknown_arm(name: object, arms: list[str]) -> str:
    """The message for an arm that does not exist."""
    nearest = near(str(name), arms)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    listed = ", ".join(arms[:_NAMED]) + (f" and {len(arms) - _NAMED} more" if len(arms) > _NAMED else "")
    return f"unknown arm {name!r}{hint} (arms: {listed})"
