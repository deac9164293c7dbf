"""What a sweep expected, judged: `pre_norm > post_norm and rope ~ alibi`.

`>` is better in the metric's direction, whichever that is. The comparisons were named before the runs
were made, so they are corrected over the comparisons of the expectation, not over all arms.

Source: Schuirmann 1987 (two one-sided tests, for `~` and, one of them, for `>=`); Holm 1979.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from blockyard.errors import UserError
from blockyard.report.stats.paired import Difference
from blockyard.report.stats.statistics import between, finite
from blockyard.report.stats.verdict import ALPHA, FEWEST, corrected, p_is

MARGIN = 0.01  # of the second arm's mean: closer than this counts as the same, unless the caller says what does

Verdict = Literal["supported", "contradicted", "undecided"]


@dataclass(frozen=True)
class Claim:
    """One comparison. sign: >, >= or ~; `<` and `<=` are turned round when they are read."""

    arm: str
    sign: str
    other: str

    def __str__(self) -> str:
        return f"{self.arm} {self.sign} {self.other}"


@dataclass(frozen=True)
class Judgement:
    """What became of an expectation, and why."""

    text: str
    verdict: Verdict
    reason: str

    def as_dict(self) -> dict[str, str]:
        """As a comparison holds it."""
        return {"text": self.text, "verdict": self.verdict, "reason": self.reason}


def parse(text: str, arms: Iterable[str]) -> list[Claim]:
    """The comparisons of an expectation. Raises UserError naming what is wrong and what would work."""
    known = list(arms)
    claims = []
    for part in re.split(r"\s+and\s+", text.strip()):
        words = re.split(r"\s*(>=|<=|(?<![<>=~])[<>~](?![<>=~]))\s*", part.strip())
        # A name may hold a sign of its own where it comes from overrides; with blanks it is never mistaken.
        spaced = re.split(r"\s+(>=|<=|>|<|~)\s+", part.strip())
        words = spaced if len(spaced) >= 3 else words
        if len(words) < 3 or not all(word.strip() for word in words):
            raise UserError(
                f"expect: {part.strip()!r} is no comparison; write `a > b`, `a >= b` or `a ~ b`, with `and`"
            )
        for place in range(0, len(words) - 2, 2):
            claims.append(_claim(words[place], words[place + 1], words[place + 2], known))
    return claims


def _claim(left: str, sign: str, right: str, known: list[str]) -> Claim:
    names = [left.strip().strip("`'\""), right.strip().strip("`'\"")]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"expect: there is no arm {name!r}{hint} (arms: {', '.join(known)})")
    if names[0] == names[1]:
        raise UserError(f"expect: {names[0]} is compared with itself")
    if sign in ("<", "<="):
        return Claim(names[1], sign.replace("<", ">"), names[0])
    return Claim(names[0], sign, names[1])


def judge(
    text: str,
    values: Mapping[str, Mapping[int, float | None]],
    direction: str,
    *,
    interesting: float | None = None,
    lacking: Mapping[str, str] | None = None,
) -> Judgement:
    """Whether the figures bear an expectation out.

    values: arm -> seed -> figure; interesting: the smallest difference that matters; MARGIN where None
    lacking: arm without a figure -> what became of it ("was refused")
    Raises UserError as `parse` does.
    """
    claims = parse(text, values)
    clean = {arm: finite(figures) for arm, figures in values.items()}
    found = {str(c): between(clean[c.arm], clean[c.other]) for c in claims}
    found = corrected(found)
    parts = []
    for c in claims:
        gone = [f"{arm} {lacking[arm]}" for arm in (c.arm, c.other) if lacking and arm in lacking]
        if gone:
            parts.append(("undecided", f"{c.arm} against {c.other}: {' and '.join(gone)}"))
        else:
            parts.append(_judge(c, found[str(c)], clean[c.other], direction, interesting))
    verdicts = [verdict for verdict, _ in parts]
    whole: Verdict = (
        "contradicted"
        if "contradicted" in verdicts
        else "supported"
        if all(verdict == "supported" for verdict in verdicts)
        else "undecided"
    )
    several = len(parts) > 1
    reason = "; ".join(f"{verdict}: {why}" if several else why for verdict, why in parts)
    return Judgement(text, whole, reason)


def _judge(
    claim: Claim, found: Difference, other: Mapping[int, float], direction: str, interesting: float | None
) -> tuple[Verdict, str]:
    pair = f"{claim.arm} against {claim.other}"
    if found.n < FEWEST or found.mean is None:
        return "undecided", f"{pair}: {found.n} common seeds, at least {FEWEST} are needed"
    gain = found.mean if direction == "max" else -found.mean
    sure = found.holm_p is not None and found.holm_p <= ALPHA and gain != 0
    figures = _figures(pair, found)
    if claim.sign == ">":
        if sure:
            return ("supported" if gain > 0 else "contradicted"), figures
        return "undecided", f"{figures}: no difference shown"
    if claim.sign == ">=" and sure and gain > 0:
        return "supported", figures
    if gain == 0 and found.deviation is None:
        return "supported", f"{figures}: the same figures"
    margin = interesting or MARGIN * abs(sum(other.values()) / len(other))
    if not margin:
        why = (
            f"the mean of {claim.other} is 0, and {MARGIN:.0%} of it no margin; `margin: D` in the sweep file says one"
        )
        return ("contradicted", figures) if sure else ("undecided", f"{figures}: {why}")
    whose = "the margin asked for" if interesting else f"{MARGIN:.0%} of the mean of {claim.other}"
    size = f"{margin:.2g} ({whose})"
    low, high = _one_sided(found, direction)
    if claim.sign == ">=":
        if low > -margin:
            return "supported", f"{figures}: not worse by as much as {size}"
        if sure:
            return "contradicted", figures
        return "undecided", f"{figures}: it may be worse by more than {size}"
    if low > -margin and high < margin:
        return "supported", f"{figures}: closer than {size}"
    if sure:
        return "contradicted", figures
    return "undecided", f"{figures}: no difference shown, but they may be further apart than {size}"


def _figures(pair: str, found: Difference) -> str:
    if found.interval is None:
        spread = "on every seed"
    else:
        spread = f"(95 % interval {found.interval[0]:.3g} to {found.interval[1]:.3g})"
    return f"{pair}: {found.mean:+.3g} {spread}, {p_is(found.holm_p)}, {found.n} seeds"


def _one_sided(found: Difference, direction: str) -> tuple[float, float]:
    """The ends, towards better, of what two one-sided tests at 5 % leave open: the 90 % interval."""
    from scipy import stats

    assert found.mean is not None
    gain = found.mean if direction == "max" else -found.mean
    if found.deviation is None:  # equal differences: of 0, or of a size whose spread is not known
        return (0.0, 0.0) if gain == 0 else (-math.inf, math.inf)
    half = stats.t.ppf(1 - ALPHA, found.n - 1) * found.deviation / math.sqrt(found.n)
    return gain - half, gain + half
