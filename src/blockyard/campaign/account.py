"""The account of a campaign in sentences: kept proposals, their gain on fresh seeds, and the remaining tries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from blockyard.campaign.ledger import BySeed, Judged, Settings
from blockyard.campaign.referee import gains_of, scale_of
from blockyard.campaign.standing import CampaignStanding
from blockyard.report.stats.intervals import mean_of
from blockyard.sweep.stopping.evidence import ROUNDING

_LARGEST = 700.0  # log e that is shown as a number


@dataclass(frozen=True)
class Worth:
    """The gain of one side over the other on common seeds. interval: 95 %; None where it is unknown"""

    metric: str
    seeds: int
    before: float
    after: float
    gain: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Account:
    """The account of a campaign.

    additions: the overrides that make the present baseline from the base
    expected_false: the expected number of false keeps, at most
    promised: the sum of the kept gains as they were judged, which selection has made too large
    worth: the present baseline against the base, on seeds that chose nothing; None until it is measured
    test: the same on the test split; None until the campaign is closed
    """

    name: str
    settings: Settings
    judged: list[Judged]
    running: list[str]
    additions: list[str]
    expected_false: float
    promised: float
    worth: Worth | None
    test: Worth | None
    alpha: float
    tries_left: int
    hours: float
    looks: int

    @classmethod
    def of(cls, name: str, standing: CampaignStanding) -> Account:
        """Return the account of a campaign."""
        settings = standing.settings
        kept = standing.kept
        worth = None
        measured = standing.measured.get(len(kept))
        if measured is not None and kept:
            worth = _worth(settings.metric, measured.base.values, measured.now.values, settings)
        test = None
        if standing.closed is not None and kept:
            test = _worth(standing.closed.metric, standing.closed.base, standing.closed.end, settings)
        names = {judged.proposal for judged in standing.judged}
        return cls(
            name=name,
            settings=settings,
            judged=standing.judged,
            running=[proposal for proposal in standing.begun if proposal not in names],
            additions=standing.additions,
            expected_false=settings.error * len(kept),
            promised=math.fsum(gain_of(judged, settings) or 0.0 for judged in kept),
            worth=worth,
            test=test,
            alpha=standing.alpha,
            tries_left=standing.tries_left,
            hours=standing.hours,
            looks=standing.looks,
        )

    def plain(self) -> Mapping[str, Any]:
        """Return the account as plain data."""
        return asdict(self)

    def table(self) -> list[list[str]]:
        """Return a row for each judgement: number, proposal, verdict, pairs, gain, evidence, needed, reason."""
        table = []
        for judged in self.judged:
            gain = gain_of(judged, self.settings)
            shown = "" if gain is None else f"{gain:+.4g}"
            evidence = f"{math.exp(min(judged.log_e, _LARGEST)):.3g}"
            row = [str(judged.number), judged.proposal, judged.verdict, str(len(judged.seeds)), shown, evidence]
            table.append([*row, f"{1 / judged.alpha:,.0f}", " ".join(judged.overrides), judged.reason])
        return table

    def sentences(self) -> list[str]:
        """Return the account in sentences."""
        kept = sum(judged.verdict == "kept" for judged in self.judged)
        lines = [
            f"{len(self.judged)} of {self.settings.tries} tries are judged, {kept} kept; at most "
            f"{self.expected_false:.2g} of them expected to be false (error {self.settings.error:g})"
        ]
        if self.running:
            lines.append(f"begun and not judged: {', '.join(self.running)}")
        if self.additions:
            lines.append(f"the baseline is the base with {' '.join(self.additions)}")
        if self.worth is not None:
            lines.append(
                f"together worth {_gain(self.worth)}, not {self.promised:+.4g}, the sum of the gains that chose them"
            )
        elif kept:
            lines.append("together not measured yet: the next try, or close, measures the baseline on fresh seeds")
        noun = "try is" if self.tries_left == 1 else "tries are"
        left = f"{self.tries_left} {noun} left; the next one is kept at an evidence of {1 / self.alpha:,.0f}"
        if self.settings.hours is not None:
            left += f"; {self.hours:.3g} of {self.settings.hours:g} hours are spent"
        if self.looks:
            left = f"closed; the test split was looked at {self.looks} time{'s' * (self.looks != 1)}"
        lines.append(left)
        if self.test is not None:
            lines.append(f"on the test split: {_gain(self.test)}")
        elif self.looks:
            lines.append("nothing was kept, so that the test split has nothing to compare")
        return lines


def gain_of(judged: Judged, settings: Settings) -> float | None:
    """Return the mean gain of a proposal's pairs, which is too large for one that was kept; None without all values."""
    if any(seed not in judged.after.values for seed in judged.seeds):
        return None
    gains = gains_of(judged.before.values, judged.after.values, judged.seeds, settings)
    return math.fsum(gains) / len(gains)


def _worth(metric: str, before: BySeed, after: BySeed, settings: Settings) -> Worth:
    seeds = list(before)
    gains = gains_of(before, after, seeds, settings)
    interval = None
    if max(gains) - min(gains) > ROUNDING * scale_of(before, after):
        interval = mean_of(gains).interval
    return Worth(
        metric=metric,
        seeds=len(seeds),
        before=math.fsum(before.values()) / len(seeds),
        after=math.fsum(after.values()) / len(seeds),
        gain=math.fsum(gains) / len(gains),
        interval=interval,
    )


def _gain(worth: Worth) -> str:
    text = f"{worth.gain:+.4g} {worth.metric}"
    if worth.interval is not None:
        low, high = worth.interval
        text += f" [{low:+.4g}, {high:+.4g}]"
    return f"{text} on {worth.seeds} seeds that chose nothing ({worth.before:.5g} to {worth.after:.5g}; + is better)"
