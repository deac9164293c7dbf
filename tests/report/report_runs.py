"""Folders of finished runs and sweeps, written without training.

    plan = sweep(tmp_path, {"post": ["block=post_norm"], "pre": ["block=pre_norm"]},
                 {"post": {0: 0.90, 1: 0.91, 2: "failed"}, "pre": {0: 0.93, 1: 0.95, 2: 0.94}})

`many(tmp_path, arms=100, seeds=5)` is a sweep of 500 runs in a second or two.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from blockyard.config.compose import compose
from blockyard.report.comparison import Comparison
from blockyard.runs.identity import identity, run_name
from blockyard.sweep.cells import Arm, Refused
from blockyard.sweep.plan.sweep_plan import SweepPlan
from tests.support.tiny import UNTRAINED, plan_of

NORMS = {"post": ["block=post_norm"], "pre": ["block=pre_norm"]}
ARMS = {**NORMS, "alibi": ["position=alibi"]}
REASONS = {
    "failed": "RuntimeError: out of memory",
    "diverged": "NotFiniteError: the loss is nan at step 40",
    "interrupted": "SIGTERM at step 40",
}
STATES = ("queued", "running", "failed", "interrupted", "missing")
DIRECTIONS = {"val/loss": "min", "val/accuracy": "max", "test/loss": "min", "test/accuracy": "max"}
TIME = "2026-01-02T03:04:05.678Z"


@lru_cache(maxsize=256)
def _composed(overrides: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str | None]]:
    composed = compose(overrides)
    assert not composed.issues, [str(issue) for issue in composed.issues]
    return composed.config, composed.choices


def config(*overrides: str) -> tuple[dict[str, Any], dict[str, str | None]]:
    """A complete config and its choices. Values (`optimizer.lr=0.1`) are put in place without composing."""
    choices_of = tuple(override for override in overrides if "." not in override.partition("=")[0])
    resolved, choices = _composed((*UNTRAINED, *choices_of))
    resolved = copy.deepcopy(resolved)
    for override in overrides:
        key, _, value = override.partition("=")
        if "." in key:
            *path, last = key.split(".")
            node = resolved
            for part in path:
                node = node[part]
            node[last] = yaml.safe_load(value)
    return resolved, dict(choices)


def run(
    outputs: Path,
    *overrides: str,
    seed: int = 0,
    figure: float | str | None = 0.9,
    summary: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    points: int = 12,
) -> Path:
    """A run's folder. figure: its test/accuracy, or the state it is in; "missing" makes no folder.

    "diverged" is the state of a run that failed because its loss was not finite.
    """
    resolved, choices = config(*overrides)
    return write(outputs, resolved, choices, seed, figure, summary, facts, points)


def write(
    outputs: Path,
    resolved: Mapping[str, Any],
    choices: Mapping[str, str | None],
    seed: int,
    figure: float | str | None,
    summary: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    points: int = 12,
) -> Path:
    """As `run`, from a complete config."""
    full = {**resolved, "seed": seed, "outputs": str(outputs)}
    path = outputs / run_name(full) / f"s{seed}"
    if figure == "missing":
        return path
    state = figure if isinstance(figure, str) else "done"
    path.mkdir(parents=True, exist_ok=True)
    reason = REASONS.get(state)
    if state == "diverged":
        state = "failed"
    _json(path / "status.json", {"state": state, "reason": reason, "step": 100, "started": TIME, "updated": TIME})
    _json(path / "run.json", _facts(full, choices) | dict(facts or {}))
    (path / "config.yaml").write_text(_text(json.dumps({**full, "seed": None}, sort_keys=True)) + f"seed: {seed}\n")
    accuracy = figure if isinstance(figure, float) else 0.5
    (path / "metrics.csv").write_text(_table(accuracy, points, seed))
    if state == "done":
        _json(path / "summary.json", _summary(full, accuracy) | dict(summary or {}))
    return path


def sweep(
    outputs: Path,
    arms: Mapping[str, Sequence[str]],
    values: Mapping[str, Mapping[int, float | str]],
    *,
    name: str = "norms",
    question: Mapping[str, Any] | None = None,
    levels: Mapping[str, Mapping[str, str]] | None = None,
    refused: Sequence[Refused] = (),
    summaries: Mapping[str, Mapping[str, Any]] | None = None,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    points: int = 12,
) -> SweepPlan:
    """A saved plan with its runs. values: arm -> seed -> test/accuracy or state; summaries, facts: by arm."""
    seeds = sorted({seed for figures in values.values() for seed in figures})
    question_keys = {
        "claim": "Pre-norm is better",
        "baseline": next(iter(arms)),
        "arms": {k: list(v) for k, v in arms.items()},
    }
    question_keys |= {
        "kind": "arms",
        "seeds": seeds,
        "metric": "test/accuracy",
        "base": [],
        "expect": None,
        "source": None,
    }
    configs = {arm: config(*overrides) for arm, overrides in arms.items()}
    for arm in arms:
        extra = (summaries or {}).get(arm), (facts or {}).get(arm)
        for seed, figure in values.get(arm, {}).items():
            write(outputs, *configs[arm], seed, figure, *extra, points=points)
    plan = plan_of(
        name,
        outputs,
        [Arm(arm, tuple(overrides), dict((levels or {}).get(arm, {}))) for arm, overrides in arms.items()],
        configs,
        values,
        question={**question_keys, **(question or {})},
        refused=refused,
        facts={
            "command": ["blockyard", "sweep", f"sweeps/{name}.yaml"],
            "time": TIME,
            "metric": {"name": "test/accuracy", "validation": "val/accuracy", "direction": "max"},
        },
    )
    plan.save()
    return plan


def many(outputs: Path, *, arms: int = 100, seeds: int = 5, points: int = 60) -> SweepPlan:
    """A sweep of many arms that differ in the learning rate, the first one in the middle of the field."""
    draw = random.Random(0)
    rates = {f"lr_{number}": [f"optimizer.lr={0.0001 * (number + 1):.4f}"] for number in range(arms)}
    values = {
        arm: {
            seed: round(0.9 + 0.05 * draw.random() * (number % 3) + 0.005 * draw.gauss(0, 1), 4)
            for seed in range(seeds)
        }
        for number, arm in enumerate(rates)
    }
    return sweep(outputs, rates, values, name="many", points=points)


def grid(factors: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], dict[str, dict[str, str]]]:
    """Arms and levels of a full grid: {"block": ["pre_norm", ...], "optimizer.lr": ["0.1", ...]}."""
    arms, levels = {}, {}
    for combination in itertools.product(*factors.values()):
        pairs = dict(zip(factors, combination, strict=True))
        name = ",".join(f"{key}={value}" for key, value in pairs.items())
        arms[name], levels[name] = [f"{key}={value}" for key, value in pairs.items()], pairs
    return arms, levels


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


@lru_cache(maxsize=256)
def _text(full: str) -> str:
    data = json.loads(full)
    data.pop("seed")
    return yaml.safe_dump(data, sort_keys=False)


def _facts(full: Mapping[str, Any], choices: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        "time": TIME,
        "command": ["blockyard", "train"],
        "versions": {"python": "3.11.7", "blockyard": "0.1.0", "torch": "2.14.1"},
        "git": {"commit": "a" * 40, "branch": "main", "dirty": False, "diff_hash": None},
        "host": {"name": "host", "cpu": "some CPU", "cores": 2, "gpus": []},
        "identity": identity(dict(full)),
        "choices": dict(choices),
        "resumes": [],
    }


def _summary(full: Mapping[str, Any], accuracy: float) -> dict[str, Any]:
    dim, depth = full["model"]["dim"], full["model"]["depth"]
    parameters = 12 * depth * dim * dim + 1000
    metrics = {"val/loss": 1.2 - accuracy, "val/accuracy": accuracy - 0.01}
    metrics |= {"test/loss": 1.21 - accuracy, "test/accuracy": accuracy}
    return {
        "metrics": metrics,
        "directions": DIRECTIONS | {"train/loss": "min"},
        "monitor": ["accuracy", "max"],
        "weights": "best.ckpt",
        "steps": 120,
        "samples": 7680,
        "seconds": 3.0,
        "parameters": {"trainable": parameters, "total": parameters},
        "flops_per_sample": {"forward": 2 * parameters, "training": 6 * parameters},
        "step_seconds": 0.02,
        "samples_per_second": 3200.0,
        "tokens_per_second": 12800.0,
        "cache_bytes_per_token": None,
        "peak_memory": {"bytes": 500_000_000, "kind": "process resident"},
        "precision": {"asked": "32", "precision": "32"},
        "device": "cpu",
        "processes": 1,
        "threads": 1,
        "data": {"fingerprint": "d" * 64, "train": 1294, "validation": 144, "test": 359},
    }


@lru_cache(maxsize=4096)
def _table(accuracy: float, points: int, seed: int) -> str:
    lines = ["step,train/loss,epoch,samples,tokens,seconds,val/loss,val/accuracy"]
    for number in range(1, points + 1):
        share = number / points
        judged = f"{1.3 - accuracy * share:.5f},{accuracy * share - 0.01:.5f}" if number % 4 == 0 else ","
        loss = 2.3 * (0.1 + 0.9 * 0.0001**share) + 0.01 * ((number * 7 + seed) % 5)  # converges
        lines.append(f"{10 * number},{loss:.5f},{share:.4f},{640 * number},{2560 * number},{0.2 * number:.3f},{judged}")
    return "\n".join(lines) + "\n"


def warned(result: Comparison, *texts: str) -> bool:
    """Whether a warning of the comparison holds all of these words."""
    return any(all(text in line for text in texts) for line in result.warnings)


def runs_of_three_arms(outputs: Path) -> None:
    """Runs outside a sweep, three seeds each."""
    for seed in range(3):
        run(outputs, "block=pre_norm", seed=seed, figure=0.95 + 0.001 * seed)
        run(outputs, "block=post_norm", seed=seed, figure=0.90 + 0.002 * seed)
        run(outputs, "block=pre_norm", "optimizer.lr=0.01", seed=seed, figure=0.91 + 0.001 * seed**2)


MEASURED: dict[str, dict[int, float | str]] = {
    "post": {0: 0.90, 1: 0.91, 2: 0.905, 3: 0.9},
    "pre": {0: 0.93, 1: 0.95, 2: 0.94, 3: 0.935},
    "alibi": {0: 0.9, 1: 0.91, 2: 0.92, 3: 0.9},
}


def norms_sweep(outputs: Path, **more: Any) -> SweepPlan:
    """A sweep over `ARMS` whose cells ended as in `MEASURED`, or as `values` says."""
    return sweep(outputs, ARMS, more.pop("values", MEASURED), **more)
