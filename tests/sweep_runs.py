"""Small sweeps for tests: plans made by hand, cells of a second or less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blockyard.check import check
from blockyard.compose import compose
from blockyard.runs.identity import run_name
from blockyard.sweep.plan import Arm, Cell, SweepPlan, Variant

TINY = (
    "name=tiny",
    "data=digits",
    "logger=none",
    "callbacks=quiet",
    "trainer=cpu",
    "trainer.precision=32",
    "model.dim=16",
    "model.depth=1",
    "model.heads=2",
    "data.batch_size=64",
    "trainer.max_steps=3",
    "trainer.log_every=1",
    "trainer.limit_val=1",
    "trainer.limit_test=1",
)
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
    variants, cells = {}, []
    for name, words in arms.items():
        composed = compose([*TINY, f"outputs={outputs}", *overrides, *words])
        problems = check(composed)
        assert not problems, [str(problem) for problem in problems]
        config = composed.config
        for key, value in ((changes or {}).get(name) or {}).items():
            family, _, option = key.partition(".")
            config[family][option] = value
        variants[name] = Variant(name, name, config, composed.choices)
        cells += [Cell(name, seed, f"{run_name(config)}/s{seed}") for seed in seeds]
    return SweepPlan(
        name="tiny",
        question={"metric": "test/accuracy", "baseline": next(iter(arms))},
        outputs=str(outputs),
        arms=tuple(Arm(name, tuple(words)) for name, words in arms.items()),
        variants=variants,
        cells=tuple(cells),
        facts={"command": ["blockyard", "sweep", "tiny.yaml"]},
    )
