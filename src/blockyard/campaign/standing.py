"""The standing of a campaign: what its events say about the baseline, the next level and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from blockyard.campaign.judgement import level
from blockyard.campaign.ledger import Begun, Closed, Created, Event, Judged, Looked, Measured, Settings
from blockyard.errors import UserError
from blockyard.sweep.spec.override_text import key_of

_MEASURED_FROM = 1_000_000_000  # the first seed of measurements, above those of all proposals


@dataclass
class CampaignStanding:
    """The events of a campaign, folded.

    judged: the verdicts, in their order
    begun: the last beginning of each proposal, in order of the first one
    measured: by the number of keeps before
    num_begun: of beginnings, of which with `fresh` each has seeds of its own
    looks: at the test split
    """

    settings: Settings
    judged: list[Judged] = field(default_factory=list)
    begun: dict[str, Begun] = field(default_factory=dict)
    measured: dict[int, Measured] = field(default_factory=dict)
    num_begun: int = 0
    looks: int = 0
    closed: Closed | None = None

    @classmethod
    def of(cls, events: Sequence[Event]) -> CampaignStanding:
        """Return the standing after events."""
        first = events[0]
        assert isinstance(first, Created)
        standing = cls(first.settings)
        for event in events[1:]:
            standing.add(event)
        return standing

    def add(self, event: Event) -> None:
        """Add one more event."""
        if isinstance(event, Judged):
            self.judged.append(event)
        elif isinstance(event, Begun):
            self.begun[event.proposal] = event
            self.num_begun += 1
        elif isinstance(event, Measured):
            self.measured[event.baseline] = event
        elif isinstance(event, Looked):
            self.looks += 1
        elif isinstance(event, Closed):
            self.closed = event

    @property
    def kept(self) -> list[Judged]:
        """The proposals that were kept, in order."""
        return [judged for judged in self.judged if judged.verdict == "kept"]

    @property
    def additions(self) -> list[str]:
        """The overrides that make the present baseline from the base: of a key the last one."""
        by_key: dict[str, str] = {}
        for judged in self.kept:
            for override in judged.overrides:
                key = key_of(override)
                by_key.pop(key, None)
                by_key[key] = override
        return list(by_key.values())

    @property
    def alpha(self) -> float:
        """The level of the next judgement."""
        return level(self.settings.error, self.settings.tries, len(self.kept))

    @property
    def tries_left(self) -> int:
        """The judgements that are left."""
        return self.settings.tries - len(self.judged)

    @property
    def hours(self) -> float:
        """The time of all runs that the ledger names."""
        events: list[Any] = [*self.judged, *self.measured.values()]
        return float(sum(event.seconds for event in events)) / 3600

    def has_time(self, seconds: float = 0.0) -> bool:
        """Return whether the campaign may start further runs. seconds: of runs that its ledger does not name yet"""
        return self.settings.hours is None or self.hours + seconds / 3600 < self.settings.hours

    def seeds_of(self, proposal: str) -> list[int]:
        """Return the seeds on which a proposal meets the present baseline."""
        baseline = len(self.kept)
        begun = self.begun.get(proposal)
        if begun is not None and begun.baseline == baseline:
            return begun.seeds
        block = self.num_begun if self.settings.fresh else baseline
        start = block * self.settings.most
        return list(range(start, start + self.settings.most))

    def measuring_seeds(self, baseline: int) -> list[int]:
        """Return the seeds on which a baseline is measured. No proposal has them."""
        start = _MEASURED_FROM + baseline * self.settings.measure
        return list(range(start, start + self.settings.measure))

    def refuse(self, proposal: str, overrides: Sequence[str]) -> None:
        """Raise UserError where a proposal cannot be tried."""
        if self.closed is not None:
            raise UserError("this campaign is closed: its test split was read; start another one with campaign new")
        for judged in self.judged:
            if judged.proposal == proposal:
                raise UserError(f"{proposal} was judged already: {judged.verdict}; give another try another name")
        begun = self.begun.get(proposal)
        if begun is not None and list(overrides) != begun.overrides:
            raise UserError(
                f"{proposal} began as {' '.join(begun.overrides)}, which is not {' '.join(overrides)}; give another "
                "proposal another name"
            )
        if self.tries_left <= 0:
            raise UserError(f"all {self.settings.tries} tries are judged; a campaign with more tries is another one")
        if not self.has_time():
            raise UserError(f"the campaign has spent its {self.settings.hours:g} hours; it can be shown and closed")
