"""Tiny configs, as lists of overrides, and plans of sweeps over them: seconds or less for each run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from blockyard.config.check import check
from blockyard.config.compose import compose
from blockyard.runs.identity import run_name
from blockyard.sweep.cells import Arm, Cell, Refused, Variant
from blockyard.sweep.plan.sweep_plan import SweepPlan

Configured = tuple[dict[str, Any], dict[str, Any]]  # a complete config, and the choice of each family


def steps(count: int, every: int | None) -> tuple[str, str]:
    """Overrides for a number of steps, with an evaluation after every few of them or, for None, at the end only."""
    return f"trainer.max_steps={count}", f"trainer.eval_every={'null' if every is None else every}"


ON_CPU = ("logger=none", "callbacks=quiet", "trainer=cpu", "trainer.precision=32")
ONE_BATCH = ("trainer.limit_val=1", "trainer.limit_test=1")  # of validation and of test data
ONE_LAYER = ("model.dim=16", "model.depth=1", "model.heads=2")
DECODER = ("model=decoder", "head=token", "objective=next_token")
TRANSLATE = ("data=translation", "tokenizer=char", "model=encoder_decoder", "head=token", "objective=translate")
# One epoch and a half of digits.
TINY = (
    *ON_CPU,
    *ONE_LAYER,
    "data.batch_size=64",  # 20 steps an epoch
    *steps(30, 8),
    "trainer.log_every=4",
    *ONE_BATCH,
    "token_mixer.dropout=0.1",  # so that a random stream matters
    "data.shift=1",
)
# A decoder of gray levels, which draws digits.
DRAWS = (*ON_CPU, *ONE_LAYER, *steps(2, None), *ONE_BATCH, "data=digits", "tokenizer=levels", *DECODER)
# The shortest digits run that evaluates.
SHORTEST = (*TINY, "name=tiny", *steps(3, None), "trainer.log_every=1")
# An encoder-decoder of captions that draws canvases.
DRAWS_CAPTIONS = (
    *("experiment=canvas_drawings", *ON_CPU, *ONE_LAYER, *steps(2, None), *ONE_BATCH, "model.encoder_depth=1"),
    *("tokenizer.codes=16", "data.samples=64", "data.eval_samples=24", "data.batch_size=8"),
)
# A decoder of text; its tokenizer is left to the test.
TEXT = (
    *(*ON_CPU, "trainer.log_every=5", "data=code", "data.context=16", "data.batch_size=4", *DECODER),
    *("model.dim=16", "model.depth=2", "model.heads=2", *steps(5, 5), *ONE_BATCH),
)
# Digits, for folders that are written without training.
UNTRAINED = ("data=digits", *ON_CPU, "model.dim=16")
# Arguments of the command line.
DEBUG = ("debug=fast", "logger=none", "callbacks=quiet")
# The base of sweep files.
VIT = ("experiment=vit_digits", "debug=fast", *ONE_LAYER, "logger=none")


def configured(*overrides: str) -> Configured:
    """A complete, checked config and its choices."""
    config, choices = _configured(overrides)
    return copy.deepcopy(config), dict(choices)


@functools.lru_cache(maxsize=256)
def _configured(overrides: tuple[str, ...]) -> Configured:
    composed = compose(overrides)
    issues = check(composed)
    assert not issues, [str(issue) for issue in issues]
    return composed.config, composed.choices


def plan_of(
    name: str,
    outputs: Path,
    arms: Iterable[Arm],
    configs: Mapping[str, Configured],
    seeds: Mapping[str, Iterable[int]],
    *,
    question: dict[str, Any],
    refused: Iterable[Refused] = (),
    facts: dict[str, Any] | None = None,
) -> SweepPlan:
    """The plan of arms that are configured already, one variant each. seeds: arm -> the seeds of its cells."""
    arms = tuple(arms)
    return SweepPlan(
        name=name,
        question=question,
        outputs=str(outputs),
        arms=arms,
        variants={arm.name: Variant(arm.name, arm.name, *configs[arm.name]) for arm in arms},
        cells=tuple(
            Cell(arm.name, seed, f"{run_name(configs[arm.name][0])}/s{seed}")
            for arm in arms
            for seed in seeds.get(arm.name, ())
        ),
        refused=tuple(refused),
        facts=facts or {},
    )
