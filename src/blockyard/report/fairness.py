"""What makes a table say less than it seems to: everything that differs between arms and was not asked about."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from blockyard.report.load.groups import Gathered, Group
from blockyard.report.load.run_record import Record

_NAMED = 6


def warnings(gathered: Gathered, metric: str | None) -> list[str]:
    """Every reason to read the table with care, one sentence each."""
    groups = gathered.groups
    found = [*gathered.warnings, *_cells(groups), *_no_number(groups, metric)]
    found += [*_budgets(groups), *_weights(groups)]
    for what, of in FACTS:
        found += _differ(what, groups, of)
    found += [*_code(groups), *_load(groups)]
    return list(dict.fromkeys(found))


def _fingerprint(run: Record) -> Hashable:
    return str(run.data["fingerprint"])[:12] if run.data.get("fingerprint") else None


def _split(run: Record) -> Hashable:
    sizes = [run.data.get(part) for part in ("train", "validation", "test")]
    return None if None in sizes else "/".join(map(str, sizes))


def _precision(run: Record) -> Hashable:
    found = run.summary.get("precision")
    return found.get("precision") if isinstance(found, dict) else found


def _plain(key: str) -> Callable[[Record], Hashable]:
    return lambda run: run.summary.get(key)


FACTS: tuple[tuple[str, Callable[[Record], Hashable]], ...] = (
    ("data (fingerprint)", _fingerprint),
    ("sizes of train/validation/test", _split),
    ("precision", _precision),
    ("device", _plain("device")),
    ("threads", _plain("threads")),
    ("processes", _plain("processes")),
)


def _differ(what: str, groups: list[Group], of: Callable[[Record], Hashable]) -> Iterator[str]:
    """One sentence where the finished runs do not all have the same of something."""
    by_value: dict[Hashable, dict[str, None]] = {}
    for group in groups:
        for run in group.done:
            value = of(run)
            by_value.setdefault(value if isinstance(value, Hashable) else repr(value), {})[group.name] = None
    by_value.pop(None, None)
    if len(by_value) > 1:
        parts = [f"{value} ({_listed(list(names))})" for value, names in by_value.items()]
        within = any(sum(name in names for names in by_value.values()) > 1 for name in by_value[next(iter(by_value))])
        note = ", also within an arm" if within else ""
        yield f"the runs differ in {what}{note}: {'; '.join(parts[:_NAMED])}"


def _code(groups: list[Group]) -> Iterator[str]:
    yield from _differ("code (git commit)", groups, _commit)
    for package in ("blockyard", "torch", "numpy"):
        yield from _differ(f"version of {package}", groups, _version(package))
    dirty = [group.name for group in groups if any(_git(run).get("dirty") for run in group.done)]
    changes = {_git(run).get("diff_hash") for group in groups for run in group.done}
    if dirty and len(changes) == 1:
        yield "the code had changes that were not committed; they were the same for all runs"


def _load(groups: list[Group]) -> Iterator[str]:
    """Times of runs that shared the machine with more or fewer others say little of the arms."""
    loads = [load for group in groups for run in group.done if isinstance(load := run.summary.get("load"), int | float)]
    if loads and max(loads) > 1.0 + 1.5 * min(loads):
        yield (
            f"the machine was not equally busy for all runs (load {min(loads):.1f} to {max(loads):.1f}): "
            "step times, throughput and seconds say little of the arms"
        )


def _git(run: Record) -> dict[str, Any]:
    found = run.facts.get("git")
    return found if isinstance(found, dict) else {}


def _commit(run: Record) -> Hashable:
    git = _git(run)
    if not git.get("commit"):
        return None
    return str(git["commit"])[:10] + (f" with changes {git['diff_hash']}" if git.get("diff_hash") else "")


def _version(package: str) -> Callable[[Record], Hashable]:
    def of(run: Record) -> Hashable:
        versions = run.facts.get("versions")
        return versions.get(package) if isinstance(versions, dict) else None

    return of


def _cells(groups: list[Group]) -> Iterator[str]:
    for group in groups:
        if group.refused and not group.runs:
            yield f"{group.name} was refused: {'; '.join(group.refused)}"
            continue
        if group.refused:
            yield f"{group.name}: a setting was refused: {'; '.join(group.refused)}"
        if not group.runs and group.planned:
            yield f"{group.name}: no setting is chosen yet; none was run to its end on all its seeds"
            continue
        states: dict[str, list[Record]] = {}
        for run in group.runs:
            if not run.done:
                states.setdefault(run.state, []).append(run)
        for state, runs in states.items():
            seeds = ", ".join(str(run.seed) for run in runs)
            reasons = dict.fromkeys(run.reason for run in runs if run.reason and state in ("failed", "interrupted"))
            why = f" ({'; '.join(map(str, reasons))})" if reasons else ""
            yield f"{group.name}: {len(runs)} of {group.planned} cells {state}{why}, seed {seeds}"


def _no_number(groups: list[Group], metric: str | None) -> Iterator[str]:
    for group in groups if metric else ():
        lacking = [run for run in group.done if run.figure(str(metric)) is None]
        if lacking:
            why = dict.fromkeys(run.reason or f"it has no {metric}" for run in lacking)
            seeds = ", ".join(str(run.seed) for run in lacking)
            yield f"{group.name}: {len(lacking)} finished runs give no {metric} ({'; '.join(why)}), seed {seeds}"


def _budgets(groups: list[Group]) -> Iterator[str]:
    tried = {group.name: group.tried for group in groups if group.tried is not None}
    if len(set(tried.values())) > 1:
        parts = ", ".join(f"{name} {count}" for name, count in tried.items())
        yield f"the arms were not tuned alike; settings tried: {parts}"
    untuned = [group.name for group in groups if group.tried is None and group.runs]
    if tried and untuned:
        yield f"not all arms were tuned: {_listed(untuned)} had no choice of settings"


def _weights(groups: list[Group]) -> Iterator[str]:
    last = [run.run for group in groups for run in group.done if run.summary.get("weights") not in (None, "best.ckpt")]
    if last:
        yield f"tested with the last weights, not the best: {_listed(last)}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
