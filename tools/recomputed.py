"""Computes the verdict of a recorded answer again from the values of its seeds, by `blockyard.compare`.

A record keeps the values of its arms by seed, the question of its plan and the commit of the rule that judged it. They
are written as a sweep's folder without configs, weights and curves, which no verdict reads, and compared.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockyard.report.comparison import Comparison, compare
from blockyard.report.load.document import ComparisonDocument, Difference
from blockyard.sweep.cells import Arm, Cell, Variant
from blockyard.sweep.plan.sweep_plan import SweepPlan
from blockyard.sweep.spec.threshold import Threshold, of_metric

ROOT = Path(__file__).resolve().parents[1]
RULE = ("src/blockyard/report/stats", "src/blockyard/sweep/stopping")  # the code that judges
SETTLED = {"tune": {}, "tune_seeds": None, "search": None, "match": None}  # keys whose runs were chosen already
TOLERANCE = 1e-9  # relative, of means and intervals: one arithmetic on the same values


@dataclass(frozen=True)
class Check:
    """The result of computing an answer again.

    wrong: what differs although the rule is the one that judged it; changed: the verdicts of today's rule that differ
    from those of the rule that judged it; missing: why nothing could be computed
    """

    name: str
    rule: str | None
    wrong: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    missing: str | None = None


def rule(commit: str = "HEAD") -> str | None:
    """Return the last change of the rule up to a commit; None where git does not know."""
    try:
        shallow = _git("rev-parse", "--is-shallow-repository")
        change = _git("log", "-1", "--format=%h", "--abbrev=10", commit, "--", *RULE)
    except (OSError, subprocess.CalledProcessError):
        return None
    return change if change and shallow == "false" else None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def kept(comparison: ComparisonDocument, commit: str) -> dict[str, Any]:
    """Return the parts of a comparison from which its verdict can be computed again.

    commit: of the code that judged it
    """
    lost: dict[str, dict[str, str | None]] = {}
    for cell in comparison.cells:
        if cell.state == "failed":
            lost.setdefault(cell.arm, {})[str(cell.seed)] = cell.reason
    question = {key: value for key, value in (comparison.question or {}).items() if key not in ("header", "path")}
    arms: dict[str, dict[str, Any]] = {}
    for arm in comparison.arms:
        arms[arm.name] = {"values": arm.values, **({"levels": arm.levels} if arm.levels else {})}
    for name, reasons in lost.items():
        arms[name]["failed"] = reasons
    return {"rule": rule(commit), "direction": comparison.direction, "plan": question, "runs": arms}


def check(name: str, answer: Mapping[str, Any], today: str | None) -> Check:
    """Return whether an answer is as the product computes it from the values of its seeds.

    today: the commit of the rule in this checkout
    """
    if not has_values(answer):
        return Check(name, answer.get("rule"), missing="the values of its seeds were not kept")
    if answer["plan"].get("over") in ("samples", "both") or answer["plan"].get("resplit"):
        return Check(name, answer["rule"], missing="its verdict is over test samples, which are not kept")
    computed = compute(answer)
    verdicts = list(_other_verdicts(answer, computed))
    if answer["rule"] == today:
        return Check(name, answer["rule"], wrong=(*verdicts, *_other_numbers(answer, computed)))
    return Check(name, answer["rule"], changed=tuple(verdicts))


def has_values(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer keeps the values of its seeds."""
    return _runs(answer) is not None


def compute(answer: Mapping[str, Any]) -> Comparison:
    """Return the comparison of the values of a recorded answer."""
    arms = _runs(answer)
    assert arms is not None
    with tempfile.TemporaryDirectory() as folder:
        plan = _plan(answer, arms, Path(folder))
        plan.save()
        metric = answer["metric"]
        for cell in plan.cells:
            runs = arms[cell.variant]
            value = runs["values"].get(str(cell.seed))
            reason = runs.get("failed", {}).get(str(cell.seed))
            if value is not None:
                _write_run(plan.path(cell), metric, answer["direction"], value)
            elif reason is not None:
                _write_status(plan.path(cell), {"state": "failed", "reason": reason})
        return compare(str(plan.folder), changes=False)


def _runs(answer: Mapping[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the values and the failures of each arm by seed; None where they were not kept.

    A record has them in its arms; a confirmation, which shows no arms, has them alone.
    """
    if "runs" in answer:
        runs: dict[str, dict[str, Any]] = answer["runs"]
        return runs
    arms = answer.get("arms", ())
    if not arms or not all("values" in arm for arm in arms):
        return None
    return {arm["name"]: arm for arm in arms}


def _plan(answer: Mapping[str, Any], runs: Mapping[str, Mapping[str, Any]], folder: Path) -> SweepPlan:
    arms = [Arm(name, (), dict(arm.get("levels", {}))) for name, arm in runs.items()]
    variants = {name: Variant(name, name, {"arm": name}, {}) for name in runs}
    cells = []
    for number, name in enumerate(runs):
        cells += [Cell(name, seed, f"arm-{number:010x}/s{seed}") for seed in answer["plan"]["seeds"]]
    facts: Any = {"metric": {"name": answer["metric"], "validation": "val/loss", "direction": answer["direction"]}}
    question = {**answer["plan"], **SETTLED}
    return SweepPlan("recorded", question, str(folder), tuple(arms), variants, tuple(cells), facts=facts)


def _write_run(path: Path, metric: str, direction: str, value: float) -> None:
    """Write a finished run whose metric, or whose outcome by steps or success, is the value."""
    _write_status(path, {"state": "done"})
    reached = of_metric(metric)
    if reached is None:
        _write(path / "summary.json", {"metrics": {metric: value}, "directions": {metric: direction}})
        return
    if reached.kind == "success":
        _write(path / "summary.json", {"metrics": {reached.metric: reached.value if value else _short_of(reached)}})
        return
    # A run that never gets there is one step after all: reaching it at that step has the same order.
    _write(path / "summary.json", {"metrics": {reached.metric: reached.value}})
    (path / "metrics.csv").write_text(f"step,{reached.metric}\n{value:.0f},{reached.value!r}\n", encoding="utf-8")


def _short_of(reached: Threshold) -> float:
    return reached.value - 1 if reached.sign == ">=" else reached.value + 1


def _write_status(path: Path, status: Mapping[str, Any]) -> None:
    path.mkdir(parents=True)
    _write(path / "status.json", status)
    (path / "config.yaml").write_text("{}\n", encoding="utf-8")


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _other_verdicts(answer: Mapping[str, Any], computed: Comparison) -> Iterator[str]:
    verdict = computed.expect and computed.expect.verdict
    if verdict != answer["verdict"]:
        yield f"{answer['verdict']} as recorded, {verdict} as computed"
    recorded = {text: verdict for text, verdict, _ in answer["clauses"]}
    now = {clause.text: clause.verdict for clause in (computed.expect.clauses if computed.expect else ())}
    for text in [*recorded, *(text for text in now if text not in recorded)]:
        if recorded.get(text) != now.get(text):
            yield f"`{text}`: {recorded.get(text)} as recorded, {now.get(text)} as computed"


def _other_numbers(answer: Mapping[str, Any], computed: Comparison) -> Iterator[str]:
    """Yield the means, differences and intervals of arms that differ; a confirmation records none."""
    for arm in answer.get("arms", ()):
        row = computed.arm(arm["name"])
        gap = row.difference or Difference(0)
        pairs = {"mean": (arm["mean"], row.mean), "difference": (arm["difference"], gap.mean)}
        low, high = arm["interval"] or (None, None)
        now_low, now_high = gap.interval or (None, None)
        pairs |= {"lower end": (low, now_low), "upper end": (high, now_high)}
        for name, (before, now) in pairs.items():
            if not _equal(before, now):
                yield f"{name} of {arm['name']}: {before} as recorded, {now} as computed"


def _equal(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is now
    return math.isclose(before, now, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
