"""Small sweeps for tests: plans without a sweep file, cells of a second or less."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockyard.atomic_files import read_json
from blockyard.runs.lock import held, holder
from blockyard.runs.metrics import read_metrics
from blockyard.sweep.cells import Arm
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.support.tiny import SHORTEST, configured, plan_of

PATIENCE = 1800.0  # seconds: only a guard; a busy machine takes minutes to import
ARMS = {"pre_norm": ["block=pre_norm"], "post_norm": ["block=post_norm"]}


def plan(
    outputs: Path,
    *overrides: str,
    arms: dict[str, list[str]] | None = None,
    seeds: tuple[int, ...] = (0, 1),
    changes: dict[str, dict[str, Any]] | None = None,
) -> SweepPlan:
    """A plan of these arms; `changes` puts values into an arm's config that `check` would refuse."""
    arms = ARMS if arms is None else arms
    configs = {}
    for name, overrides_of_arm in arms.items():
        config, choices = configured(*SHORTEST, *overrides, *overrides_of_arm)  # composed once for all folders
        config["outputs"] = str(outputs)
        for key, value in ((changes or {}).get(name) or {}).items():
            family, _, option = key.partition(".")
            config[family][option] = value
        configs[name] = config, choices
    return plan_of(
        "tiny",
        outputs,
        [Arm(name, tuple(overrides_of_arm)) for name, overrides_of_arm in arms.items()],
        configs,
        dict.fromkeys(arms, seeds),
        question={"metric": "test/accuracy", "baseline": next(iter(arms))},
        facts={"command": ["blockyard", "sweep", "tiny.yaml"]},
    )


# What `blockyard sweep` does with a frozen plan, as a process of its own.
PLANNER = (
    "import sys; from pathlib import Path; from blockyard.sweep.executor import build; "
    "from blockyard.sweep.plan.sweep_plan import SweepPlan; from blockyard.sweep.execution.runner import run_plan; "
    "sys.exit(run_plan(SweepPlan.load(Path(sys.argv[1])), build('local', {'gpus': None, 'threads': 1, 'workers': 2})))"
)


def planner(sweep_plan: SweepPlan) -> subprocess.Popen[str]:
    """Start a planner on a saved plan. It leads a process group, as in a terminal."""
    return subprocess.Popen(
        [sys.executable, "-c", PLANNER, str(sweep_plan.folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def at_work(sweep_plan: SweepPlan) -> list[int]:
    """The processes that train cells at the moment."""
    paths = {sweep_plan.path(cell) for cell in sweep_plan.cells}
    notes = [holder(path) for path in paths if held(path) and (path / "config.yaml").is_file()]
    return [int(str(note["pid"])) for note in notes if note]  # a process that has just taken its lock has no note yet


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """Call until the value is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"nothing happened for {seconds} seconds"
        time.sleep(0.02)
    return value


def figures(sweep_plan: SweepPlan) -> dict[str, Any]:
    """The results of every run of a plan without times: rows of metrics and the metrics of the summary."""
    values = {}
    for cell in sweep_plan.cells:
        path = sweep_plan.path(cell)
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in read_metrics(path / "metrics.csv")]
        values[cell.variant, cell.seed] = rows, read_json(path / "summary.json")["metrics"]
    return values
