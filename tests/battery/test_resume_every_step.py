"""A run of three epochs, stopped after each of its steps and resumed in a new process, ends with the same bits.

Most points start from a copy of the run folder as it was after a step: what SIGKILL leaves. At every sixth SIGTERM
comes during the step, which is finished and saved.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from blockyard.runs.checkpoint import newest_good
from tests.battery.attempts import attempt, copy_at, run_folder, strike
from tests.battery.cases import battery, cases
from tests.battery.same_run import assert_same_run
from tests.support.tiny import ON_CPU, ONE_BATCH, ONE_LAYER, configured

pytestmark = battery("resume_every_step")

EPOCHS, STEPS = 3, 12  # of an epoch
TOTAL = EPOCHS * STEPS
BASE = (
    *(*ON_CPU, *ONE_LAYER, *ONE_BATCH, "data.batch_size=8", "data.eval_batch_size=8"),
    *(f"trainer.max_epochs={EPOCHS}", f"trainer.limit_train={STEPS}", "trainer.eval_every=10", "trainer.log_every=3"),
)
TEXT = ("data=code", "data.context=16", "tokenizer=byte", "position=rope", "head=token")
AVERAGE = ("callbacks.ema._target_=pytorch_lightning.callbacks.EMAWeightAveraging", "callbacks.ema.decay=0.8")
PAIRS = (
    *("data=translation", "data.context=20", "data.source_context=20", "tokenizer=char", "model=encoder_decoder"),
    *("head=token", "objective=translate", "trainer.accumulate=2", "trainer.group=3"),
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "accumulate": ("trainer.accumulate=2", "norm=batch"),
    "workers": ("trainer.num_workers=2", "data.shift=1", "data.flip=true"),
    "workers_accumulate": ("trainer.num_workers=2", "trainer.accumulate=4", "token_mixer.dropout=0.1"),
    "augment_dropout": ("data.shift=1", "data.crop=0.2", "model.dropout=0.1", "token_mixer.dropout=0.1"),
    "muon_wsd": ("optimizer=muon", "schedule=wsd", "model.dropout=0.1"),
    "sgd_whole_epochs": ("optimizer=sgd", "schedule=linear", "data.train_size=96", "trainer.limit_train=null"),
    "text_bf16": (*TEXT, "model=decoder", "objective=next_token", "trainer.precision=bf16-mixed"),
    "masked_workers": (*TEXT, "objective=masked_token", "trainer.num_workers=2", "trainer.accumulate=2"),
    "pairs_accumulate": PAIRS,
    "recurrent_default": ("token_mixer=lstm", "model=decoder", "callbacks=default", "schedule=constant"),
    "average": AVERAGE,
    "mixed_balanced": ("objective.mixup=0.4", "objective.cutmix=1.0", "trainer.sampling=balanced", "data.shift=1"),
}
POINTS = [(variant, step) for variant in VARIANTS for step in range(1, TOTAL + 1)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a variant's undisturbed run and of the copies of it, trained when it is first asked for."""

    @cache
    def train(variant: str) -> Path:
        outputs = tmp_path_factory.mktemp(variant)
        run = configured(*_variant_overrides(variant), "callbacks.checkpoint.every=1", f"outputs={outputs / 'whole'}")
        whole = attempt(run, before=copy_at(range(1, TOTAL + 1), outputs))
        assert whole.code == 0, whole.output
        assert run_folder(outputs / "whole").status.step == TOTAL
        return outputs

    return train


@pytest.mark.sampled(100)
@pytest.mark.parametrize("point", cases(POINTS, short=4, names=lambda point: f"{point[0]}-{point[1]}"))
def test_a_run_resumed_at_this_step_ends_with_the_same_bits(
    point: tuple[str, int], undisturbed: Callable[[str], Path], tmp_path: Path
) -> None:
    variant, step = point
    whole = undisturbed(variant)
    run = configured(*_variant_overrides(variant), "callbacks.checkpoint.every=1", f"outputs={tmp_path}")
    if step % 6:
        shutil.copytree(whole / str(step), tmp_path, dirs_exist_ok=True)
    else:
        micro_batch = step // 6 % int(run[0]["trainer"]["accumulate"])
        stopped = attempt(run, before=strike(step - 1, signal.SIGTERM, micro_batch=micro_batch))
        assert stopped.code == 143, stopped.output
    folder = run_folder(tmp_path)
    assert folder.status.state == "interrupted"
    assert newest_good(folder.checkpoints, identity=folder.identity, seed=folder.seed).step == step
    resumed = attempt(run)
    assert resumed.code == 0, resumed.output
    assert_same_run(run_folder(tmp_path), run_folder(whole / "whole"))
    shutil.rmtree(tmp_path)


def test_every_step_of_every_variant_is_a_point() -> None:
    assert len(POINTS) == len(set(POINTS)) == len(VARIANTS) * TOTAL


def _variant_overrides(variant: str) -> tuple[str, ...]:
    keys = {override.partition("=")[0] for override in VARIANTS[variant]}
    return (*(override for override in BASE if override.partition("=")[0] not in keys), *VARIANTS[variant])
