"""The runs of a campaign: cells of a sweep plan with one arm or two, run one pair of seeds after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blockyard.atomic_files import write_yaml
from blockyard.campaign.ledger import RunsBySeed
from blockyard.engine.data_reader import DataReader
from blockyard.errors import UserError
from blockyard.runs.identity import run_name
from blockyard.runs.status import diverged
from blockyard.sweep.cell.states import CellState, final_metrics, read_state
from blockyard.sweep.cells import Cell
from blockyard.sweep.execution.runner import run_plan
from blockyard.sweep.executor import build
from blockyard.sweep.plan.planner import make_plan
from blockyard.sweep.plan.sweep_plan import SweepPlan

BASELINE = "baseline"
Say = Callable[[str], object]


class StoppedError(Exception):
    """A signal stopped the runs; the same command continues. code: the exit code that shells expect"""

    def __init__(self, code: int) -> None:
        super().__init__("stopped; finished runs are kept, and the same command continues")
        self.code = code


@dataclass
class Arms:
    """The arms of a plan, with their runs so far.

    plan: its cells are not used; the seeds are the campaign's
    workers: runs in parallel
    say: prints a line
    """

    plan: SweepPlan
    workers: int | None
    say: Say
    retry: bool = False
    runs: dict[str, RunsBySeed] = field(default_factory=dict)

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        return self.plan.facts["metric"]["name"]

    def run_seeds(self, seeds: Sequence[int], arms: Sequence[str]) -> None:
        """Run the cells of some seeds, those that have run already excepted. Raises StoppedError."""
        cells = [self._cell(arm, seed) for seed in seeds for arm in arms]
        missing = [cell for cell in cells if read_state(self.plan.path(cell)).state != "done"]
        if missing:
            executor = build("local", {}, self.workers)
            code = run_plan(replace(self.plan, cells=tuple(missing)), executor, retry=self.retry, say=self.say)
            if code in (130, 143):
                raise StoppedError(code)
        for cell in cells:
            runs = self.runs.setdefault(cell.variant, RunsBySeed({}, {}))
            runs.folders[cell.seed] = cell.run
            value = final_metrics(self.plan.path(cell), self.plan.metric_names).get(self.metric)
            if value is not None and math.isfinite(value):
                runs.values[cell.seed] = value

    def has_ended(self, arm: str, seed: int) -> bool:
        """Return whether a run is done or has failed. One that was stopped from outside goes on."""
        return self._state(arm, seed).state in ("done", "failed")

    def failure(self, arm: str, seed: int) -> str | None:
        """Return why an arm has no value at a seed that has run; None where it has one."""
        if seed in self.runs[arm].values:
            return None
        state = self._state(arm, seed)
        if diverged(state.state, state.reason):
            return f"its run of seed {seed} diverged: {state.reason}"
        return f"its run of seed {seed} has no {self.metric}: {state.reason or state.state}"

    def costs(self, arm: str) -> dict[str, list[float]]:
        """Return the step_seconds and parameters of an arm's runs."""
        values: dict[str, list[float]] = {}
        for folder in self.runs[arm].folders.values():
            metrics = final_metrics(Path(self.plan.outputs) / folder)
            for name in ("step_seconds", "parameters"):
                if name in metrics:
                    values.setdefault(name, []).append(metrics[name])
        return values

    def seconds(self, counted: set[str]) -> float:
        """Return the time of all runs that are not in `counted`."""
        total = 0.0
        for runs in self.runs.values():
            for folder in runs.folders.values():
                if folder not in counted:
                    state = read_state(Path(self.plan.outputs) / folder)
                    total += state.metrics.get("seconds", state.seconds or 0.0)
        return total

    def _state(self, arm: str, seed: int) -> CellState:
        return read_state(Path(self.plan.outputs) / self.runs[arm].folders[seed])

    def _cell(self, arm: str, seed: int) -> Cell:
        return Cell(arm, seed, f"{run_name(self.plan.variants[arm].config)}/s{seed}")


def plan_arms(
    file: Path,
    claim: str,
    base: Sequence[str],
    arms: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    metric: str,
    outputs: Path,
) -> SweepPlan:
    """Write a sweep file with these arms, and return its plan, checked as `blockyard sweep` checks it.

    Raises UserError with every problem of the base, an arm or the metric.
    """
    question = {
        "claim": claim,
        "base": list(base),
        "baseline": next(iter(arms)),
        "arms": {name: list(overrides) for name, overrides in arms.items()},
        "seeds": list(seeds),
        "metric": metric,
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_yaml(file, question)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from error
    data = DataReader(None)
    plan = make_plan(file, outputs=str(outputs), command=["blockyard", "campaign"], data=data)
    data.release()
    for refused in plan.refused:
        raise UserError("\n  - ".join(f"{refused.arm}: {reason}" for reason in refused.reasons))
    return plan
