"""A campaign: proposals are tried one after the other, and what is kept joins the baseline."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from blockyard.campaign.allowed import refuse_difference, refuse_overrides
from blockyard.campaign.judgement import Decision, decide, log_evidence
from blockyard.campaign.ledger import (
    Begun,
    BySeed,
    Closed,
    Direction,
    Judged,
    Ledger,
    Looked,
    Measured,
    RunsBySeed,
    Settings,
    run_folders,
)
from blockyard.campaign.standing import CampaignStanding
from blockyard.config.untrusted.local_path import outputs_folder
from blockyard.errors import UserError
from blockyard.runs.costs import COSTS
from blockyard.runs.lock import RunLock
from blockyard.runs.metric_name import MetricName
from blockyard.sweep.cell.states import final_metrics

if TYPE_CHECKING:
    from blockyard.campaign.arms import Arms

FOLDER = "campaigns"
TRIES = "tries"
BASE = "base"
NOW = "now"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,39}")
_LIMITS = {"slower": "step_seconds", "larger": "parameters"}  # key of the settings -> cost
Say = Callable[[str], object]


class CampaignFailed(RuntimeError):  # noqa: N818 - like RunFailed
    """A run of the baseline has failed, or a run was stopped from outside: no proposal can be blamed for it."""


class Campaign:
    """A campaign in a folder: `Campaign("small").propose("rms", "norm=rms").verdict`.

    outputs: the folder of all runs; the campaign's own is campaigns/NAME below it
    workers: runs in parallel; None for as many as a sweep takes
    say: prints a line of progress
    """

    def __init__(
        self,
        name: str,
        *,
        outputs: str | os.PathLike[str] = "outputs",
        workers: int | None = None,
        say: Say = print,
    ) -> None:
        _refuse_name("campaign", name)
        self.name = name
        self.outputs = outputs_folder(outputs)
        self.folder = self.outputs / FOLDER / name
        self.ledger = Ledger(self.folder)
        self._workers = workers
        self._say = say

    @classmethod
    def create(
        cls,
        name: str,
        *base: str,
        metric: str,
        error: float = 0.05,
        tries: int = 100,
        first: int = 4,
        most: int = 20,
        measure: int = 8,
        fresh: bool = False,
        hours: float | None = None,
        slower: float | None = None,
        larger: float | None = None,
        outputs: str | os.PathLike[str] = "outputs",
    ) -> Campaign:
        """Start a campaign, and return it. Checks the base, and starts no run.

        base: overrides of the first baseline; the other arguments are those of `Settings`
        Raises UserError with every problem of the base or the metric, or where there is a campaign of this name.
        """
        from blockyard.campaign.arms import plan_arms

        campaign = cls(name, outputs=outputs)
        if MetricName.parse(metric).split != "val":
            kind = "a cost" if metric in COSTS else "not measured on validation"
            raise UserError(
                f"metric={metric}: {kind}; a campaign chooses by a metric on validation, such as val/loss, and its "
                "test split is sealed until it is closed"
            )
        if campaign.ledger.exists():
            raise UserError(f"{campaign.folder} is a campaign already; choose another name")
        settings = Settings(
            base=list(base),
            metric=metric,
            direction="min",
            error=error,
            tries=tries,
            first=first,
            most=most,
            measure=measure,
            fresh=fresh,
            hours=hours,
            slower=slower,
            larger=larger,
        )
        settings.check()
        file = campaign.folder / f"{name}-{BASE}.yaml"
        claim = f"The base of the campaign {name}"
        plan = plan_arms(file, claim, base, {BASE: []}, [0], metric, campaign.outputs)
        direction: Direction = "min"
        if plan.facts["metric"]["direction"] == "max":
            direction = "max"
        campaign.ledger.create(replace(settings, base=plan.question["base"], direction=direction))
        return campaign

    def standing(self) -> CampaignStanding:
        """Return the standing after all events. Raises UserError where there is no such campaign."""
        return CampaignStanding.of(self.ledger.read())

    def propose(self, proposal: str, *overrides: str, retry: bool = False) -> Judged:
        """Try overrides against the present baseline, and return the verdict. Kept ones join the baseline.

        A baseline that another proposal changes meanwhile is met again from the start, with its own seeds; the runs
        until then are no evidence, and take no level. A try that was stopped goes on with the same call.

        retry: start failed runs of the baseline again
        Raises UserError for a proposal that cannot be tried, CampaignFailed where a run of the baseline has failed,
        and StoppedError after a signal.
        """
        _refuse_name("proposal", proposal)
        refuse_overrides(proposal, overrides)
        self.standing().refuse(proposal, overrides)
        (self.folder / TRIES).mkdir(exist_ok=True)
        lock = RunLock(self.folder / TRIES / proposal).acquire()
        try:
            while True:
                judged = self._propose(proposal, overrides, retry)
                if judged is not None:
                    break
                self._say("the baseline has changed: another proposal was kept; this one meets the new baseline")
        finally:
            lock.release()
        self._say(f"{judged.proposal}: {judged.verdict}; {judged.reason}")
        if judged.verdict == "kept":
            self._measure(retry)
        return judged

    def close(self, *, retry: bool = False) -> Closed:
        """Compare the base with the last baseline on the test split, and end the campaign. A repeated call is a look.

        The runs are those of the last measurement, on seeds that chose nothing.
        """
        standing = self.standing()
        if standing.closed is None:
            self._measure(retry)
        with self.ledger.locked() as events:
            standing = CampaignStanding.of(events)
            measured = standing.measured.get(len(standing.kept))
            if measured is None:
                raise UserError("another proposal was kept at this moment, which is not measured yet; close again")
            self.ledger.append(Looked())  # before anything is read
            if standing.closed is not None:
                return standing.closed
            metric = str(MetricName.parse(standing.settings.metric).logged().on("test"))
            closed = Closed(metric, self._values(measured.base, metric), self._values(measured.now, metric))
            return self.ledger.append(closed)

    def _propose(self, proposal: str, overrides: Sequence[str], retry: bool) -> Judged | None:
        """Return the verdict; None where the baseline has changed before it."""
        self._measure(retry)
        standing = self.standing()
        seeds = standing.seeds_of(proposal)
        arms = self._arms(proposal, overrides, standing, seeds)
        arms.retry = retry
        with self.ledger.locked() as events:
            now = CampaignStanding.of(events)
            now.refuse(proposal, overrides)
            if len(now.kept) != len(standing.kept) or now.seeds_of(proposal) != seeds:
                return None
            begun = now.begun.get(proposal)
            if begun is None or begun.baseline != len(now.kept):
                begun = Begun(proposal, list(overrides), len(now.kept), seeds)
                begun = self.ledger.append(begun)
        while True:
            decision = self._look(arms, begun, standing)
            standing = self.standing()
            if len(standing.kept) != begun.baseline:
                return None
            if decision is not None:
                break
        return self._judge(arms, begun, decision)

    def _arms(self, proposal: str, overrides: Sequence[str], standing: CampaignStanding, seeds: Sequence[int]) -> Arms:
        """Return the arms of a proposal. Raises UserError for one that cannot be trained, or changes the question."""
        from blockyard.campaign.arms import BASELINE, Arms, plan_arms

        settings = standing.settings
        file = self.folder / TRIES / f"{self.name}-{proposal}.yaml"
        base = [*settings.base, *standing.additions]
        if proposal == BASELINE:
            raise UserError(f"{proposal}: the other arm has this name; choose another one")
        claim = f"{proposal} is better than the baseline of the campaign {self.name}"
        sides = {BASELINE: [], proposal: overrides}
        plan = plan_arms(file, claim, base, sides, seeds, settings.metric, self.outputs)
        refuse_difference(proposal, plan.variants[BASELINE].config, plan.variants[proposal].config)
        return Arms(plan, self._workers, self._say)

    def _look(self, arms: Arms, begun: Begun, standing: CampaignStanding) -> Decision | None:
        """Run the pairs up to the next look, and return its decision; None where another pair is due."""
        from blockyard.campaign.arms import BASELINE

        settings = standing.settings
        done = len(arms.runs[BASELINE].folders) if BASELINE in arms.runs else 0
        seeds = begun.seeds[done : max(done + 1, settings.first)]
        arms.run_seeds(seeds, (BASELINE, begun.proposal))
        for seed in seeds:
            if reason := arms.failure(BASELINE, seed):
                raise CampaignFailed(
                    f"the baseline cannot be compared: {reason}; the same command with --retry starts it again"
                )
        for seed in seeds:
            reason = arms.failure(begun.proposal, seed)
            if reason and arms.has_ended(begun.proposal, seed):
                return Decision("rejected", reason)
            if reason:
                raise CampaignFailed(f"{begun.proposal} is not judged: {reason}; the same command goes on")
        if reason := self._beyond_limits(arms, begun, standing):
            return Decision("rejected", reason)
        before = arms.runs[BASELINE].values
        after = arms.runs[begun.proposal].values
        looked = begun.seeds[: len(before)]
        gains = gains_of(before, after, looked, settings)
        decision = decide(gains, scale_of(before, after), standing.alpha, settings.most)
        self._say(
            f"{begun.proposal}: {len(gains)} pairs, gain {sum(gains) / len(gains):+.4g}, evidence "
            f"{_number(log_evidence(gains, scale_of(before, after)))} of {1 / standing.alpha:,.0f}"
        )
        if decision is None and not standing.has_time(arms.seconds(run_folders(self.ledger.read()))):
            return Decision("open", f"the campaign's {settings.hours:g} hours are spent")
        return decision

    def _beyond_limits(self, arms: Arms, begun: Begun, standing: CampaignStanding) -> str | None:
        """Return why a proposal costs more than the campaign allows, beside the base; None where it does not."""
        base = standing.measured[begun.baseline].costs
        costs = arms.costs(begun.proposal)
        for key, cost in _LIMITS.items():
            limit = getattr(standing.settings, key)
            values = costs.get(cost)
            if limit is None or not values or cost not in base:
                continue
            ratio = sum(values) / len(values) / base[cost]
            if ratio > limit:
                return f"its {cost} is {ratio:.3g} times the base's, and {key}={limit:g} is the most"
        return None

    def _judge(self, arms: Arms, begun: Begun, decision: Decision) -> Judged | None:
        """Append the verdict, at the level of its turn, and return it; None where the baseline has changed."""
        from blockyard.campaign.arms import BASELINE

        before = arms.runs[BASELINE]
        after = arms.runs[begun.proposal]
        seeds = [seed for seed in begun.seeds if seed in before.folders]
        log_e = 0.0
        with self.ledger.locked() as events:
            standing = CampaignStanding.of(events)
            standing.refuse(begun.proposal, begun.overrides)
            if len(standing.kept) != begun.baseline:
                return None
            if len(after.values) == len(seeds):
                gains = gains_of(before.values, after.values, seeds, standing.settings)
                log_e = log_evidence(gains, scale_of(before.values, after.values))
            judged = Judged(
                proposal=begun.proposal,
                overrides=begun.overrides,
                baseline=begun.baseline,
                number=len(standing.judged) + 1,
                alpha=standing.alpha,
                log_e=log_e,
                verdict=decision.verdict,
                reason=decision.reason,
                seeds=seeds,
                before=before,
                after=after,
                seconds=arms.seconds(run_folders(events)),
            )
            return self.ledger.append(judged)

    def _measure(self, retry: bool) -> None:
        """Measure the present baseline beside the base on fresh seeds, unless that is done."""
        from blockyard.campaign.arms import Arms, plan_arms

        standing = self.standing()
        baseline = len(standing.kept)
        if baseline in standing.measured:
            return
        settings = standing.settings
        seeds = standing.measuring_seeds(baseline)
        self._say(f"measuring the baseline on {len(seeds)} seeds that no proposal uses")
        sides = {BASE: settings.base}
        if standing.additions:
            sides[NOW] = [*settings.base, *standing.additions]
        runs: dict[str, RunsBySeed] = {}
        seconds = 0.0
        costs: dict[str, float] = {}
        counted = run_folders(self.ledger.read())
        for arm, overrides in sides.items():
            file = self.folder / f"{self.name}-{arm}.yaml"
            claim = f"A baseline of the campaign {self.name}"
            plan = plan_arms(file, claim, overrides, {arm: []}, seeds, settings.metric, self.outputs)
            arms = Arms(plan, self._workers, self._say, retry)
            arms.run_seeds(seeds, [arm])
            for seed in seeds:
                if reason := arms.failure(arm, seed):
                    raise CampaignFailed(f"the baseline cannot be measured: {reason}; --retry starts it again")
            runs[arm] = arms.runs[arm]
            seconds += arms.seconds(counted)
            if arm == BASE:
                costs = {cost: sum(values) / len(values) for cost, values in arms.costs(arm).items()}
        measured = Measured(baseline, runs[BASE], runs.get(NOW, runs[BASE]), costs, seconds)
        with self.ledger.locked() as events:
            if baseline not in CampaignStanding.of(events).measured:  # two proposers may measure
                self.ledger.append(measured)

    def _values(self, runs: RunsBySeed, metric: str) -> BySeed:
        """Return the values of another metric of runs. Raises UserError where one has none."""
        values: BySeed = {}
        for seed, folder in runs.folders.items():
            value = final_metrics(Path(self.outputs) / folder).get(metric)
            if value is None:
                raise UserError(f"{self.outputs / folder} has no {metric}; was the run deleted?")
            values[seed] = value
        return values


def gains_of(before: BySeed, after: BySeed, seeds: Sequence[int], settings: Settings) -> list[float]:
    """Return the differences of pairs, positive where the proposal is better."""
    sign = 1.0 if settings.direction == "max" else -1.0
    return [sign * (after[seed] - before[seed]) for seed in seeds]


def scale_of(before: BySeed, after: BySeed) -> float:
    """Return the largest size of the values, by which their rounding is measured."""
    return max((abs(value) for value in (*before.values(), *after.values())), default=0.0)


def _refuse_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"{kind} {name!r}: a name has letters, digits, _ and -, at most 40 of them")


def _number(log_e: float) -> str:
    """Return an e-value of a logarithm for a line of text."""
    return f"{math.exp(min(log_e, 700.0)):.3g}"
