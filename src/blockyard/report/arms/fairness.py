"""Warnings about the runs of a comparison: missing cells, unequal tuning, and everything that differs between them."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from blockyard.errors import fold
from blockyard.report.load.arms import ArmRuns, ComparisonInput, counted
from blockyard.report.load.costs import ALIKE
from blockyard.report.load.run_record import LoadedRun
from blockyard.report.stats.metric_range import SHARE, metric_range
from blockyard.report.stats.sensitivity import samples_noise
from blockyard.runs.metric_name import MetricName
from blockyard.runs.status import read_status
from blockyard.sweep.plan.timed import by_the_clock
from blockyard.sweep.spec.keys import space_of
from blockyard.sweep.spec.ladder import FACTOR

_MAX_NAMED = 6
_UNEQUAL = 1.01  # ratio of samples from which budgets differ
NEAR = 0.05  # the share of a continuous range, on its own scale, that counts as its end

Fact = Callable[[LoadedRun], Hashable]


def warnings(
    data: ComparisonInput, metric: str, margin: float | None = None, *, fixed_samples: bool = True
) -> list[str]:
    """Return every reason to read the table with care, a sentence each.

    margin: the smallest difference that matters; fixed_samples: whether verdicts hold for these test samples alone
    """
    arms = data.arms
    lines = [*data.warnings, *_unfinished(arms), *_without_metric(arms, metric), *_tuning(arms), *range_ends(data)]
    lines += _sizes(data)
    last = [run.run for run in _finished(arms) if run.summary.get("weights") not in (None, "best.ckpt")]
    if last:
        lines.append(f"tested with the last weights instead of the best: {fold(last)}")
    if not isinstance((data.question or {}).get("match"), dict):  # with a length, samples differ on purpose
        for group in _of_one_budget(data):
            lines += _unequal_budgets(group)
    lines += _small_test_set(arms, metric, margin)
    if fixed_samples:
        lines += below_the_noise(arms, metric, margin)
    if (data.question or {}).get("resplit"):
        lines += _splits(arms)
    else:
        lines += _differences("data (fingerprint)", arms, _fingerprint)
    lines += _differences("sizes of train/validation/test", arms, _split_sizes)
    lines += _differences("precision", arms, _precision)
    lines += _differences("device", arms, lambda run: run.summary.get("device"))
    lines += _differences("threads", arms, lambda run: run.summary.get("threads"))
    lines += _differences("processes", arms, lambda run: run.summary.get("processes"))
    lines += [*_code(arms), *_load(arms), *_beside_each_other(arms, metric), *_of_the_data(arms)]
    return list(dict.fromkeys(lines))


def _finished(arms: Iterable[ArmRuns]) -> list[LoadedRun]:
    return [run for arm in arms for run in arm.done]


def _fingerprint(run: LoadedRun) -> Hashable:
    if run.data.get("fingerprint"):
        return str(run.data["fingerprint"])[:12]
    return None


def _split_sizes(run: LoadedRun) -> Hashable:
    sizes = [run.data.get(part) for part in ("train", "validation", "test")]
    if None in sizes:
        return None
    return "/".join(map(str, sizes))


def _precision(run: LoadedRun) -> Hashable:
    precision = run.summary.get("precision")
    if isinstance(precision, dict):
        return precision.get("precision")
    return precision


def range_ends(data: ComparisonInput) -> Iterator[str]:
    """Yield a sentence for each tuned key and each end of its range that validation chose for an arm."""
    question = data.question or {}
    search = question.get("search")
    shared: Mapping[str, Any] = question.get("tune") or {}
    tried: dict[str, Mapping[str, Any]] = {arm.name: shared for arm in data.arms}
    if search:
        shared = shared or search["space"]
        tried = {arm.name: space_of(search, arm.name) for arm in data.arms}
    keys = dict.fromkeys(shared)
    for space in tried.values():
        keys |= dict.fromkeys(space)
    for key in keys:
        ends: dict[str, list[str]] = {}
        for arm in data.arms:
            value = (arm.chosen or {}).get(key)
            if key not in tried[arm.name] or not _number(value):
                continue
            end = _end(value, tried[arm.name][key])
            if end is not None:
                ends.setdefault(end, []).append(f"{arm.name} ({value:.4g})")
        for end, names in ends.items():
            yield f"{key}: {end} was best for {', '.join(names)}; a wider range may hold a better one"


def _end(value: float, values: Any) -> str | None:
    """Return the end at which a value lies in a list of values, or in a range from low to high; None inside."""
    if isinstance(values, list):
        numbers = sorted(number for number in values if _number(number))
        if len(numbers) != len(values) or len(numbers) < 2 or value == 0:  # nothing lies below a rate of zero
            return None
        shown = ", ".join(f"{number:.4g}" for number in numbers)
        if value == numbers[-1]:
            return f"the largest of {shown}"
        if value == numbers[0]:
            return f"the smallest of {shown}"
        return None
    low = values["low"]
    high = values["high"]
    if high <= low:
        return None
    scale = math.log if values.get("log") else float
    share = (scale(value) - scale(low)) / (scale(high) - scale(low))
    if share <= NEAR and low != 0:
        return f"the lower end of {low:.4g} to {high:.4g}"
    if share >= 1 - NEAR:
        return f"the upper end of {low:.4g} to {high:.4g}"
    return None


def _number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _sizes(data: ComparisonInput) -> Iterator[str]:
    """Yield a warning where arms that were matched in parameters were trained with other numbers of them."""
    baseline = data.arm(data.baseline or "")
    question = data.question or {}
    if baseline is None or question.get("match") != "params" or question.get("ladder"):
        return
    means = {}
    for arm in data.arms:
        counts = list(arm.values("parameters").values())
        if counts:
            means[arm.name] = sum(counts) / len(counts)
    target = means.get(baseline.name)
    if not target:
        return
    matched = data.facts.get("match", {}).get("arms", {})
    as_planned: dict[str, float] = {}
    learned: dict[str, float] = {}
    for name, mean in means.items():
        ratio = mean / target
        is_other = abs(ratio - 1) > ALIKE
        if not is_other:
            continue
        planned = matched[name]["off"] if name in matched else 0.0
        # The mismatch that the plan left is most of the trained one; else a tokenizer has changed the size since.
        if abs(ratio - 1 - planned) < abs(planned):
            as_planned[name] = ratio
        else:
            learned[name] = ratio
    if as_planned:
        yield (
            f"the arms were matched in parameters, but {_times(as_planned)} those of {baseline.name}: a width is a "
            "multiple of model.heads, and none is nearer; with fewer heads widths are closer to each other"
        )
    if learned:
        yield (
            f"the arms were matched in parameters, but {_times(learned)} those of {baseline.name} once trained: sizes "
            "are matched before a tokenizer has learned its vocabulary; set its size in `base`, such as "
            "tokenizer.max_words=1000"
        )


def _times(ratios: dict[str, float]) -> str:
    return ", ".join(f"{arm} has {ratio:.2f} times" for arm, ratio in ratios.items())


def _differences(name: str, arms: list[ArmRuns], fact: Fact) -> Iterator[str]:
    """Yield one sentence where the finished runs differ in a fact."""
    by_value: dict[Hashable, dict[str, None]] = {}
    for arm in arms:
        for run in arm.done:
            value = fact(run)
            if not isinstance(value, Hashable):  # a record on disk may hold anything
                value = repr(value)
            by_value.setdefault(value, {})[arm.name] = None
    by_value.pop(None, None)  # a run of an earlier release may not have recorded the fact
    if len(by_value) > 1:
        parts = []
        counts: Counter[str] = Counter()
        for value, names in by_value.items():
            parts.append(f"{value} ({fold(list(names))})")
            counts.update(names.keys())
        note = ", also within an arm" if max(counts.values()) > 1 else ""
        yield f"the runs differ in {name}{note}: {'; '.join(parts[:_MAX_NAMED])}"


def _splits(arms: list[ArmRuns]) -> Iterator[str]:
    """Yield faults of the splits where each seed is to have one of its own, the same for all arms."""
    by_seed: dict[int, dict[Hashable, None]] = {}
    for arm in arms:
        for run in arm.done:
            fingerprint = _fingerprint(run)
            if fingerprint:
                by_seed.setdefault(run.seed, {})[fingerprint] = None
    torn = [seed for seed, prints in by_seed.items() if len(prints) > 1]
    if torn:
        yield f"the arms were tested on different splits for seed {', '.join(map(str, torn))}"
    if len(by_seed) > 1 and len({tuple(prints) for prints in by_seed.values()}) < len(by_seed):
        yield "some seeds have the same split of the data, although each was to have its own"


def _of_one_budget(data: ComparisonInput) -> list[list[ArmRuns]]:
    """Return the arms in groups that should have one budget: a group for each rung of a ladder, else one group."""
    groups: dict[str | None, list[ArmRuns]] = {}
    climbed = bool((data.question or {}).get("ladder"))
    for arm in data.arms:
        groups.setdefault(arm.levels.get(FACTOR) if climbed else None, []).append(arm)
    return list(groups.values())


def _unequal_budgets(arms: Sequence[ArmRuns]) -> Iterator[str]:
    """Yield a sentence where arms were trained on different numbers of samples."""
    samples: dict[str, float] = {}
    for arm in arms:
        counts = [run.summary.get("samples") for run in arm.done]
        numbers = [float(count) for count in counts if isinstance(count, int | float)]
        if numbers and len(numbers) == len(counts):
            samples[arm.name] = statistics.median(numbers)
    if samples and min(samples.values()) > 0 and max(samples.values()) > _UNEQUAL * min(samples.values()):
        listed = ", ".join(f"{name} {count:,.0f}" for name, count in list(samples.items())[:6])
        yield f"the arms were trained on different numbers of samples: {listed}"


def _small_test_set(arms: Sequence[ArmRuns], metric: str, margin: float | None) -> Iterator[str]:
    """Yield a sentence where the margin is less than one sample of the test set."""
    size = _test_samples(arms, metric)
    if margin is not None and size is not None and margin < 1 / size:
        yield (
            f"the margin {margin:g} is less than one of the {size:,} test samples ({1 / size:.2g} of "
            f"{metric}): a difference that small is not measured"
        )


def below_the_noise(arms: Sequence[ArmRuns], metric: str, margin: float | None) -> Iterator[str]:
    """Yield a sentence where the choice of the test samples alone makes a difference as large as the margin."""
    size = _test_samples(arms, metric)
    means = [statistics.fmean(values) for arm in arms if (values := arm.values(metric).values())]
    if margin is None or size is None or not means or not _of_whole_samples(arms, metric):
        return
    level = statistics.median(means)
    chance = samples_noise(level, size)
    if margin < chance:
        yield (
            f"the margin {margin:g} is below the noise of the test set: by the choice of its {size:,} samples alone "
            f"two arms near {level:.2g} differ by up to {chance:.2g}, if they err on different ones"
        )


def _of_whole_samples(arms: Sequence[ArmRuns], metric: str) -> bool:
    """Return whether a metric counts each test sample as right or wrong, not each of its tokens or pixels."""
    name = MetricName.parse(metric).name
    if name in ("exact", "exact_match"):
        return True
    if not name.startswith(("accuracy", "top")):
        return False
    for run in _finished(arms):
        choices = run.facts.get("choices")
        if not isinstance(choices, dict) or choices.get("objective") != "classify":
            return False
    return True


def _test_samples(arms: Sequence[ArmRuns], metric: str) -> int | None:
    """Return the number of test samples of which a metric is a share; None for other metrics."""
    if metric_range(metric, ()) != SHARE or metric.startswith("success("):
        return None
    sizes = []
    for run in _finished(arms):
        size = run.data.get("test")
        if isinstance(size, int) and size > 0:
            sizes.append(size)
    return max(sizes, default=None)


def _code(arms: list[ArmRuns]) -> Iterator[str]:
    """Yield a sentence on each difference between the code and the packages of the finished runs."""
    yield from _differences("code (git commit)", arms, _commit)
    for package in ("blockyard", "torch", "numpy"):
        yield from _differences(f"version of {package}", arms, _version(package))
    packages: set[str] = set()
    dirty = False
    changes = set()
    for run in _finished(arms):
        packages |= set(run.facts.get("own_code") or ())
        git = _git(run)
        dirty = dirty or bool(git.get("dirty"))
        changes.add(git.get("diff_hash"))
    for package in sorted(packages):
        yield from _differences(f"the code of {package}", arms, _own_code(package))
    if dirty and len(changes) == 1:
        yield "the code had uncommitted changes, the same for all runs"


def _own_code(package: str) -> Fact:
    """Return the hash of a package of the user's own; None where a run did not record one."""
    return lambda run: (run.facts.get("own_code") or {}).get(package)


def _load(arms: list[ArmRuns]) -> Iterator[str]:
    """Yield a warning where some runs shared the machine with more processes than others."""
    loads = []
    for run in _finished(arms):
        load = run.summary.get("load")
        if isinstance(load, int | float):
            loads.append(load)
    if loads and max(loads) > 1.0 + 1.5 * min(loads):
        yield (
            f"the load of the machine differed between runs ({min(loads):.1f} to {max(loads):.1f}): "
            "step times, throughput and training times are not comparable between arms"
        )


def _beside_each_other(arms: list[ArmRuns], metric: str) -> Iterator[str]:
    """Yield a warning where a clock decides and runs shared the cores of a machine, or a process."""
    clock = by_the_clock(metric, {arm.name: arm.config for arm in arms})
    if clock is None:
        return
    by_host: dict[Hashable, list[tuple[str, str, str]]] = {}  # start, end and name; times of one format sort as text
    for run in _finished(arms):
        status = read_status(run.path)
        if run.summary.get("device") == "cpu" and status.started and status.ended:
            host = (run.facts.get("host") or {}).get("name")
            by_host.setdefault(host, []).append((status.started, status.ended, run.run))
    shared: dict[str, None] = {}
    count = 0
    for runs in by_host.values():
        runs.sort()
        count += len(runs)
        latest = runs[0]
        for start, end, name in runs[1:]:
            if start < latest[1]:
                shared |= {latest[2]: None, name: None}
            if end > latest[1]:
                latest = (start, end, name)
    if shared:
        yield (
            f"{clock} is read off a clock, and {len(shared)} of {count} runs shared a machine's cores with another: "
            "what ran beside an arm counts in its result"
        )


def _git(run: LoadedRun) -> dict[str, Any]:
    git = run.facts.get("git")
    if isinstance(git, dict):
        return git
    return {}


def _commit(run: LoadedRun) -> Hashable:
    git = _git(run)
    if not git.get("commit"):
        return None
    commit = str(git["commit"])[:10]
    if git.get("diff_hash"):
        return f"{commit} with changes {git['diff_hash']}"
    return commit


def _version(package: str) -> Fact:
    def version(run: LoadedRun) -> Hashable:
        versions = run.facts.get("versions")
        if isinstance(versions, dict):
            return versions.get(package)
        return None

    return version


def _unfinished(arms: list[ArmRuns]) -> Iterator[str]:
    """Yield the arms and cells without a result, one sentence for each reason."""
    refused: dict[str, list[str]] = {}
    refused_settings: dict[str, list[str]] = {}
    undecided: list[str] = []
    cells: dict[tuple[str, str], list[tuple[ArmRuns, list[LoadedRun]]]] = {}  # by state and reasons
    for arm in arms:
        reason = "; ".join(arm.refused)
        if arm.refused and not arm.runs:
            refused.setdefault(reason, []).append(arm.name)
            continue
        if arm.refused:
            refused_settings.setdefault(reason, []).append(arm.name)
        if not arm.runs and arm.planned:
            undecided.append(arm.name)
            continue
        states: dict[str, list[LoadedRun]] = {}
        for run in arm.runs:
            if not run.done:
                states.setdefault(run.state, []).append(run)
        for state, runs in states.items():
            reasons: dict[str, None] = {}
            if state in ("failed", "interrupted"):
                reasons = dict.fromkeys(str(run.reason) for run in runs if run.reason)
            cells.setdefault((state, "; ".join(reasons)), []).append((arm, runs))
    for reason, names in refused.items():
        verb = "was" if len(names) == 1 else "were"
        yield f"{counted(names, 'arms')} {verb} refused: {reason}"
    for reason, names in refused_settings.items():
        yield f"{counted(names, 'arms')}: a setting was refused: {reason}"
    if undecided:
        yield f"{counted(undecided, 'arms')}: no setting is chosen yet; none has finished on all its seeds"
    for (state, reason), of_arms in cells.items():
        yield _cells(of_arms, f"{state} ({reason})" if reason else state)


def _cells(of_arms: list[tuple[ArmRuns, list[LoadedRun]]], state: str) -> str:
    """Return the number of cells of these arms that are in a state, with their names."""
    # With averages, each seed has several cells.
    planned = sum(max(arm.planned, len(arm.runs)) for arm, _ in of_arms)
    if len(of_arms) == 1:
        ((arm, runs),) = of_arms
        return f"{arm.name}: {len(runs)} of {planned} cells {state}, {_seeds(runs)}"
    names = [f"{arm.name} s{run.seed}" for arm, runs in of_arms for run in runs]
    return f"{len(names)} of {planned} cells of {len(of_arms)} arms {state}: {fold(names)}"


def _without_metric(arms: list[ArmRuns], metric: str) -> Iterator[str]:
    """Yield the finished runs without a value, one sentence for each reason."""
    by_reason: dict[str, list[tuple[ArmRuns, list[LoadedRun]]]] = {}
    for arm in arms:
        runs = [run for run in arm.done if run.value(metric) is None]
        if runs:
            reasons = dict.fromkeys(run.reason or "not recorded" for run in runs)
            by_reason.setdefault("; ".join(reasons), []).append((arm, runs))
    for reason, of_arms in by_reason.items():
        if len(of_arms) == 1:
            ((arm, runs),) = of_arms
            yield f"{arm.name}: {len(runs)} finished runs have no {metric} ({reason}), {_seeds(runs)}"
            continue
        names = [f"{arm.name} s{run.seed}" for arm, runs in of_arms for run in runs]
        yield f"{len(names)} finished runs of {len(of_arms)} arms have no {metric} ({reason}): {fold(names)}"


def _tuning(arms: list[ArmRuns]) -> Iterator[str]:
    """Yield a sentence where arms had different numbers of tuned settings."""
    tried = {arm.name: arm.tried for arm in arms if arm.tried is not None}
    if len(set(tried.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in tried.items())
        yield f"the arms had different tuning budgets; settings tried: {counts}"
    untuned = [arm.name for arm in arms if arm.tried is None and arm.runs]
    if tried and untuned:
        yield f"some arms were tuned, but not {fold(untuned)}"


def _of_the_data(arms: list[ArmRuns]) -> Iterator[str]:
    """Yield the warnings about the data of finished runs; warnings that differ in numbers alone count as one."""
    first: dict[str, tuple[str, dict[str, None]]] = {}
    for arm in arms:
        for run in arm.done:
            data = run.facts.get("data")
            if not isinstance(data, dict):
                continue
            for text in data.get("warnings") or ():
                _, names = first.setdefault(re.sub(r"\d+", "0", text), (text, {}))
                names[arm.name] = None
    done = [arm.name for arm in arms if arm.done]
    for text, names in first.values():
        if list(names) == done:
            yield text
        else:
            yield f"{fold(list(names))}: {text}"


def _seeds(runs: list[LoadedRun]) -> str:
    """Return "seed 1" or "seeds 1, 2"."""
    seeds = dict.fromkeys(str(run.seed) for run in runs)
    noun = "seeds" if len(seeds) > 1 else "seed"
    return f"{noun} {', '.join(seeds)}"
