"""A run that SIGKILL strikes at random moments, again and again, ends as if it had never been disturbed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from blockyard.config.check import check
from blockyard.config.choices import catalog
from blockyard.config.compose import compose
from tests.battery import run_catalogue
from tests.battery.attempts import Attempt, attempt, run_folder, wait_for_processes
from tests.battery.cases import battery
from tests.battery.kill_timer import Moment
from tests.battery.run_catalogue import Choice
from tests.battery.same_run import assert_nothing_torn, assert_same_run, leave_alone
from tests.battery.table import BATTERIES, KILLED, KILLS, TOKENIZERS
from tests.config import products
from tests.support.tiny import Configured, configured

pytestmark = battery("kill_anywhere")

FEW_KILLS = 3  # of the one config of the default suite
# Between them their runs hold every choice of the other families, too, as a test below says.
CONFIGS = [choice for choice in run_catalogue.registered() if choice[0] in KILLED]
CONFIGS += [("tokenizer", name) for name in TOKENIZERS]
CLOCKS = (time.CLOCK_PROCESS_CPUTIME_ID, time.CLOCK_MONOTONIC)
LONGER = ("trainer.max_steps=20", "trainer.eval_every=6")
AVERAGE = ("callbacks.ema._target_=pytorch_lightning.callbacks.EMAWeightAveraging", "callbacks.ema.decay=0.8")
OWN_AVERAGE = ("callbacks=ema", "callbacks.ema.decay=0.8")
DROPOUT = ("callbacks=dropout_schedule", "model.dropout=0.2")
STOP = ("callbacks=early_stopping", "callbacks.early_stopping.patience=1", "callbacks.early_stopping.min_delta=0.05")
EVERY_ATTENTION = ("callbacks=attention_maps", "callbacks.attention_maps.every_evaluation=true")


@pytest.mark.full
@pytest.mark.parametrize(
    ("choice", "most_kills"),
    [pytest.param(CONFIGS[0], FEW_KILLS, id="few")]
    + [pytest.param(choice, KILLS, id="=".join(choice), marks=pytest.mark.battery) for choice in CONFIGS],
)
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(
    choice: Choice, most_kills: int, data_files: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    random = Random("=".join(choice))
    overrides = _overrides(choice, data_files, random)
    whole = attempt(_run(overrides, tmp_path / "whole"))
    assert whole.code == 0, whole.output
    undisturbed = run_folder(tmp_path / "whole")
    kills, attempts = 0, [whole]
    while kills < most_kills:
        outputs = tmp_path / f"killed-{len(attempts)}"
        chain = list(_chain(_run(overrides, outputs), whole, random, most_kills - kills, outputs))
        assert chain[-1].code == 0, chain[-1].output
        assert "Traceback" not in chain[-1].output
        assert_same_run(run_folder(outputs), undisturbed)
        kills += len(chain) - 1
        attempts += chain
        assert len(attempts) < 10 * most_kills, "most attempts end before they are killed"
    assert wait_for_processes(attempts) == []
    record_property("cases", kills)
    shutil.rmtree(tmp_path)


def test_the_number_required_is_that_of_all_kills() -> None:
    """Each config is killed so many times."""
    assert BATTERIES["kill_anywhere"].required == KILLS * len(CONFIGS) >= 500


@pytest.mark.battery
def test_the_cases_hold_every_component_and_setting(data_files: Path) -> None:
    """Every choice of what a model, its data and its training are made of, and what a case sets around them."""
    held, overrides = set(), set()
    for choice in CONFIGS:
        drawn = _overrides(choice, data_files, Random("=".join(choice)))
        held |= set(configured(*drawn)[1].items())
        overrides |= set(drawn)
    for family in (*products.FAMILIES, "optimizer", "schedule", "preset", "experiment"):
        assert {name for name in catalog.choices(family) if (family, name) not in held} == set(), family
    assert {f"callbacks={name}" for name in catalog.choices("callbacks")} <= overrides | {"callbacks=quiet"}
    assert {"trainer.num_workers=0", "trainer.num_workers=2", "trainer.accumulate=2", *AVERAGE} <= overrides
    assert {"trainer.precision=32", "trainer.precision=bf16-mixed"} <= overrides


def _chain(run: Configured, whole: Attempt, random: Random, most: int, outputs: Path) -> Iterator[Attempt]:
    """Killed attempts, at most so many, then the one that ends the run."""
    for _ in range(random.randint(min(most, 3), most)):
        clock = random.choice(CLOCKS)
        length = whole.cpu if clock == CLOCKS[0] else whole.wall
        struck = attempt(run, Moment(random.uniform(0.01, 1) * length, clock))
        yield struck
        if not struck.killed:
            return
        for folder in outputs.glob("*/s0"):
            assert_nothing_torn(folder)
            leave_alone(folder)
    yield attempt(run)


def _overrides(choice: Choice, files: Path, random: Random) -> tuple[str, ...]:
    """A run that holds a component, with settings drawn around it that `check` accepts."""
    base = (*run_catalogue.overrides(*choice, files), *LONGER)
    for _ in range(20):
        drawn = _settings(random)
        overrides = _merged(base, [override for override in drawn if override.partition("=")[0] != choice[0]])
        if not check(compose(overrides)):
            return overrides
    return base


def _settings(random: Random) -> list[str]:
    """An optimizer, a schedule, callbacks, and how the run trains, loads and saves."""
    plain: list[tuple[str, ...]] = [("callbacks=quiet",), ("callbacks=default",)]
    callbacks = random.choice([*plain, AVERAGE, OWN_AVERAGE, STOP, DROPOUT, EVERY_ATTENTION])
    return [
        *(f"optimizer={random.choice(list(catalog.choices('optimizer')))}", "optimizer.lr=1e-3"),
        f"schedule={random.choice(list(catalog.choices('schedule')))}",
        *callbacks,
        f"trainer.num_workers={random.choice([0, 0, 2])}",
        f"trainer.accumulate={random.choice([1, 2])}",
        f"trainer.precision={random.choice([32, 32, 'bf16-mixed'])}",
        f"callbacks.checkpoint.every={random.choice(['null', 1, 5])}",
    ]


def _merged(base: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    """Both, of which `more` wins; a chosen callback file leaves the options of another out."""
    keys = {override.partition("=")[0] for override in more}
    return (*(override for override in base if override.partition("=")[0] not in keys), *more)


def _run(overrides: tuple[str, ...], outputs: Path) -> Configured:
    return configured(*overrides, f"outputs={outputs}")
