"""Every verdict of a campaign, computed again from its ledger and the run folders.

An event is computed again from the events before it alone: the baseline, the level of its turn, the evidence and the
verdict. The values that it names are read from the summaries of its runs. The name of a run's folder ends in the hash
of its config: the baseline has to be the proposal that was kept last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from blockyard.campaign.judgement import decide, level, log_evidence
from blockyard.campaign.ledger import Begun, Closed, Event, Judged, Measured, RunsBySeed, Settings, runs_of
from blockyard.campaign.referee import Campaign, gains_of, scale_of
from blockyard.campaign.standing import CampaignStanding
from blockyard.sweep.cell.states import final_metrics

_CLOSE = 1e-9  # relative: the ledger keeps every digit of a float


def audit(campaign: Campaign) -> list[str]:
    """Return every problem of a campaign; empty where all of its verdicts follow from its runs.

    Raises UserError where the ledger is damaged.
    """
    events = campaign.ledger.read()
    problems: list[str] = []
    standing = CampaignStanding.of(events[:1])
    settings = standing.settings
    for event in events[1:]:
        label = _label(event)
        for side, runs in runs_of(event).items():
            for problem in _run_problems(campaign.outputs, runs, settings.metric):
                problems.append(f"{label}: {side}: {problem}")
        if standing.closed is not None and not isinstance(event, Closed) and event.event != "looked":
            problems.append(f"{label}: it came after the campaign was closed")
        if isinstance(event, Judged):
            problems += [f"{label}: {problem}" for problem in _judgement_problems(event, standing)]
        if isinstance(event, Measured):
            problems += [f"{label}: {problem}" for problem in _measurement_problems(event, standing)]
        if isinstance(event, Closed):
            problems += [f"{label}: {problem}" for problem in _closing_problems(event, standing, campaign)]
        standing.add(event)
    return problems


def _label(event: Event) -> str:
    if isinstance(event, Judged):
        return f"judgement {event.number} ({event.proposal})"
    if isinstance(event, Measured):
        return f"measurement after {event.baseline} keeps"
    if isinstance(event, Begun):
        return f"beginning of {event.proposal}"
    return event.event


def _measurement_problems(measured: Measured, standing: CampaignStanding) -> Iterator[str]:
    """Yield the problems of a measurement. standing: before it"""
    for runs in (measured.base, measured.now):
        if list(runs.folders) != standing.measuring_seeds(measured.baseline):
            yield "its seeds are not those of this measurement"
    first = standing.measured.get(0)
    if first is not None and _configs(measured.base) != _configs(first.base):
        yield "its base is not that of the first measurement"
    if measured.baseline and _configs(measured.now) != _baseline_configs(standing):
        yield "it is not of the proposal that was kept last"


def _baseline_configs(standing: CampaignStanding) -> set[str]:
    """Return the config of the present baseline: that of the proposal that was kept last, or of the measured base."""
    if standing.kept:
        return _configs(standing.kept[-1].after)
    if 0 in standing.measured:
        return _configs(standing.measured[0].base)
    return set()


def _configs(runs: RunsBySeed) -> set[str]:
    """Return the folders of runs without their seeds, whose names end in the hash of a config."""
    return {folder.rpartition("/")[0] for folder in runs.folders.values()}


def _judgement_problems(judged: Judged, standing: CampaignStanding) -> Iterator[str]:
    """Yield the problems of a judgement. standing: before it"""
    settings = standing.settings
    kept = len(standing.kept)
    if judged.number != len(standing.judged) + 1:
        yield f"its number is {judged.number}, and {len(standing.judged)} were judged before"
    if judged.baseline != kept:
        yield f"it met the baseline after {judged.baseline} keeps, and there were {kept}"
    alpha = level(settings.error, settings.tries, kept)
    if not _same(judged.alpha, alpha):
        yield f"its level is {judged.alpha:.6g}, and {kept} keeps before it give {alpha:.6g}"
    begun = standing.begun.get(judged.proposal)
    if begun is None or begun.overrides != judged.overrides:
        yield "no beginning has its name and overrides"
    elif judged.seeds != begun.seeds[: len(judged.seeds)]:
        yield "its seeds are not the first ones with which it began"
    if _configs(judged.before) != _baseline_configs(standing):
        yield "it did not meet the runs of the baseline"
    if len(_configs(judged.after)) != 1 or _configs(judged.after) == _configs(judged.before):
        yield "its runs are not those of one config, other than the baseline's"
    if any(seed not in judged.before.values for seed in judged.seeds):
        yield "a run of the baseline has no value"
        return
    yield from _verdict_problems(judged, settings, alpha)


def _verdict_problems(judged: Judged, settings: Settings, alpha: float) -> Iterator[str]:
    """Yield where the evidence or the verdict does not follow from the values."""
    log_e = 0.0
    earlier = None
    decision = None
    complete = all(seed in judged.after.values for seed in judged.seeds)
    if complete:
        gains = gains_of(judged.before.values, judged.after.values, judged.seeds, settings)
        scale = scale_of(judged.before.values, judged.after.values)
        log_e = log_evidence(gains, scale)
        decision = decide(gains, scale, alpha, settings.most)
        for count in range(settings.first, len(gains)):
            seeds = judged.seeds[:count]
            before = {seed: judged.before.values[seed] for seed in seeds}
            after = {seed: judged.after.values[seed] for seed in seeds}
            earlier = earlier or decide(gains[:count], scale_of(before, after), alpha, settings.most)
    if not _same(judged.log_e, log_e):
        yield f"its log e is {judged.log_e:.6g}, and its values give {log_e:.6g}"
    if earlier is not None:
        yield f"it went on after a look at which it was {earlier.verdict}"
    if judged.verdict == "kept" and (decision is None or decision.verdict != "kept"):
        yield "it was kept, and its values do not reach the evidence of its turn"
    if judged.verdict != "kept" and decision is not None and decision.verdict == "kept":
        yield f"it was {judged.verdict}, and its values reach the evidence of its turn"


def _closing_problems(closed: Closed, standing: CampaignStanding, campaign: Campaign) -> Iterator[str]:
    """Yield where the test values are not those of the last measurement."""
    if not standing.looks:
        yield "no look at the test split stands before it"
    measured = standing.measured.get(len(standing.kept))
    if measured is None:
        yield "the last baseline was not measured"
        return
    for side, runs, values in (("base", measured.base, closed.base), ("end", measured.now, closed.end)):
        for problem in _run_problems(campaign.outputs, RunsBySeed(runs.folders, values), closed.metric):
            yield f"{side}: {problem}"


def _run_problems(outputs: Path, runs: RunsBySeed, metric: str) -> Iterator[str]:
    """Yield where values are not those of the run folders."""
    for seed, folder in runs.folders.items():
        value = final_metrics(outputs / folder, [metric]).get(metric)
        expected = runs.values.get(seed)
        if not (outputs / folder).is_dir():
            yield f"{folder} is missing"
        elif not folder.endswith(f"/s{seed}"):
            yield f"{folder} is not a run of seed {seed}"
        elif expected is not None and (value is None or not _same(value, expected)):
            yield f"{folder} has {metric} {value}, and the ledger {expected}"


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_CLOSE, abs_tol=_CLOSE)
