"""`blockyard.lightning`: a Trainer of the user's own, with stock callbacks, trains and tests what a run does."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import (
    BatchSizeFinder,
    EarlyStopping,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
)
from pytorch_lightning.loggers import CSVLogger

import blockyard
from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.engine.plain_trainer import TrainerModule, unserved
from blockyard.engine.plain_trainer_data import TrainerData
from blockyard.engine.trainer import TrainerPlan
from blockyard.errors import UserError
from blockyard.evaluate.api import evaluate
from blockyard.runs.checkpoint import BadCheckpointError
from tests.support.engine_runs import rows, run, state
from tests.support.every import every
from tests.support.paths import ROOT
from tests.support.plain_trainers import same, trainer, weights
from tests.support.tiny import TEXT, TINY

SCHEDULE_FREE = (*TINY, "optimizer=schedule_free", "schedule=constant")
CONFIGS = {
    "digits": TINY,
    "micro-batches": (*TINY, "trainer.accumulate=2"),
    "schedule_free": SCHEDULE_FREE,
    "text": (*TEXT, "tokenizer=char"),
    "lines": (*TEXT, "tokenizer=char", "data.sample=line", "trainer.accumulate=2"),
    "workers": (*TINY, "trainer.num_workers=1"),
}


class Validated(pl.Callback):
    """The metrics of each validation."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        values = trainer.callback_metrics.items()
        self.rows.append({name: float(value) for name, value in values if name.startswith("val/")})


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.sampled(3)
def test_fit_ends_with_the_weights_of_a_run_and_test_with_its_metrics(name: str, tmp_path: Path) -> None:
    overrides = CONFIGS[name]
    trained = run(tmp_path, *overrides, "trainer.threads=1", base=())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the run: the order of additions depends on it
    try:
        module, data = blockyard.lightning(*overrides)
        first = weights(module)
        validated = Validated()
        trainer(module, tmp_path, callbacks=[validated], num_sanity_val_steps=0).fit(module, datamodule=data)
        assert not same(weights(module), first)
        saved = {key: value for key, value in state(trained).items() if key.startswith("model.")}
        assert same(weights(module), saved)
        best = TrainerModule.load_from_checkpoint(trained.path)
        (metrics,) = trainer(best, tmp_path).test(best, datamodule=data, verbose=False)
        (validation,) = trainer(best, tmp_path).validate(best, datamodule=data, verbose=False)
    finally:
        torch.set_num_threads(threads)
    assert metrics | validation == trained.summary()["metrics"]
    logged = [{key: row[key] for key in row if key.startswith("val/")} for row in rows(trained) if "val/loss" in row]
    assert validated.rows
    assert validated.rows == logged[: len(validated.rows)]  # a run evaluates once more at its end


@pytest.mark.parametrize("where", ["inside an epoch", "after validation", "after an epoch"])
def test_a_fit_goes_on_from_a_checkpoint_to_the_bit(where: str, tmp_path: Path) -> None:
    """Lightning itself starts the epoch's data again, with a note, where a loader has no state."""
    overrides = (*TINY, "trainer.max_steps=50", "trainer.eval_every=20")  # 20 steps an epoch
    save = {
        "inside an epoch": ModelCheckpoint(tmp_path / "kept", every_n_train_steps=27, save_top_k=-1),
        "after validation": ModelCheckpoint(tmp_path / "kept", save_top_k=-1),
        "after an epoch": ModelCheckpoint(tmp_path / "kept", save_top_k=-1, save_on_train_epoch_end=True),
    }[where]
    module, data = blockyard.lightning(*overrides)
    trainer(module, tmp_path, callbacks=[save], enable_checkpointing=True).fit(module, datamodule=data)
    path = min((tmp_path / "kept").iterdir(), key=lambda each: torch.load(each, weights_only=True)["global_step"])
    assert torch.load(path, weights_only=True)["global_step"] == (27 if where == "inside an epoch" else 20)
    again, data = blockyard.lightning(*overrides)
    trainer(again, tmp_path).fit(again, datamodule=data, ckpt_path=path)
    assert same(weights(again), weights(module))


def test_stock_callbacks_monitor_save_and_stop(tmp_path: Path) -> None:
    """A checkpoint of a Trainer rebuilds the model; its metrics are those that were saved under its name."""
    module, data = blockyard.lightning(*TINY)
    save = ModelCheckpoint(tmp_path / "kept", monitor="val/loss", filename="best")
    stop = EarlyStopping("val/accuracy", mode="max", patience=1, min_delta=2.0)  # never reached: stops at once
    rates = LearningRateMonitor("step")
    fit = trainer(
        module, tmp_path, callbacks=[save, stop, rates], enable_checkpointing=True, logger=CSVLogger(tmp_path)
    )
    fit.fit(module, datamodule=data)
    assert fit.global_step == 16  # the second evaluation, after which nothing had improved
    assert rates.lrs
    again = TrainerModule.load_from_checkpoint(save.best_model_path)
    (values,) = trainer(again, tmp_path).validate(again, datamodule=data, verbose=False)
    assert values["val/loss"] == float(save.best_model_score)


def test_the_learning_rate_finder_sets_what_is_trained_with(tmp_path: Path) -> None:
    overrides = (*TINY, "schedule.warmup=10", "optimizer.layer_decay=0.5")
    seen: list[list[float]] = []

    class Rates(pl.Callback):
        def on_before_optimizer_step(self, trainer: pl.Trainer, module: Any, optimizer: Any) -> None:
            seen.append([group["lr"] for group in optimizer.param_groups])

    module, data = blockyard.lightning(*overrides)
    first = weights(module)
    shares = {group["initial_lr"] / module.lr for group in module.optimizer_builder.build(module.model).param_groups
              if "initial_lr" in group}  # fmt: skip
    finder = LearningRateFinder(num_training_steps=25, min_lr=1e-5, max_lr=1.0)
    fit = trainer(module, tmp_path, callbacks=[finder, Rates()], max_steps=3, max_epochs=-1)
    fit.fit(module, datamodule=data)
    assert finder.optimal_lr is not None
    suggested = finder.optimal_lr.suggestion()
    assert module.lr == suggested != blockyard.lightning(*overrides)[0].lr
    factors = [module.schedule.factor(step, 3) for step in range(3)]
    full = [group["initial_lr"] for group in fit.optimizers[0].param_groups]
    assert max(full) == pytest.approx(suggested)
    assert len({round(rate / suggested, 9) for rate in full}) > 1, shares  # groups keep their shares
    assert seen[-3:] == [[rate * factor for rate in full] for factor in factors]
    assert not same(weights(module), first)


@pytest.mark.full
def test_the_batch_size_finder_sets_the_data(tmp_path: Path) -> None:
    module, data = blockyard.lightning(*TINY, "data.batch_size=8")
    finder = BatchSizeFinder(max_trials=3, steps_per_trial=2, init_val=4)
    fit = trainer(module, tmp_path, callbacks=[finder], max_steps=2)
    fit.fit(module, datamodule=data)
    assert finder.optimal_batch_size == data.batch_size == 16
    assert len(data.train_dataloader().dataset[0]) == 16
    finder = BatchSizeFinder(max_trials=9, steps_per_trial=1, init_val=700)  # of 1,293 samples
    trainer(module, tmp_path, callbacks=[finder], max_steps=2).fit(module, datamodule=data)
    assert finder.optimal_batch_size == 1400


def test_predictions_name_their_samples(tmp_path: Path) -> None:
    module, data = blockyard.lightning(*TINY, "trainer.limit_test=null", "data.eval_batch_size=100")
    batches = trainer(module, tmp_path).predict(module, datamodule=data)
    assert batches is not None
    samples = torch.cat([batch.sample for batch in batches])
    assert samples.tolist() == list(range(len(data.splits.test)))
    with torch.no_grad():
        batch = data.splits.test.batch(torch.arange(100), None)
        torch.testing.assert_close(batches[0].output, module.eval().model(batch), rtol=0, atol=0)


def test_a_data_module_without_a_trainer_gives_the_first_epoch() -> None:
    _, data = blockyard.lightning(*TINY)
    loader = data.train_dataloader()
    assert len(loader) == 20
    assert next(iter(loader)).inputs.equal(loader.dataset[0].inputs)
    loader.sampler.set_epoch(1)
    assert next(iter(loader)).inputs.equal(loader.dataset[20].inputs)


def test_loaders_for_another_number_of_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning would leave them as they are, and every process would read every sample."""
    module, data = blockyard.lightning(*TINY)
    loader = data.train_dataloader()
    fit = trainer(module, tmp_path)
    monkeypatch.setattr(type(fit), "world_size", 2)
    with pytest.raises(UserError, match=r"the loader is for 1 processes and the Trainer has 2; .*datamodule=data"):
        fit.fit(module, loader)


def test_what_only_the_loop_of_a_run_does_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        blockyard.lightning(
            *TINY, "callbacks=ema", "trainer.attention=eager", "trainer.require_flash=true", "model=decoder"
        )
    text = str(refused.value)
    assert every(part in text for part in ("callbacks.ema", "trainer.attention=eager", "trainer.require_flash=true"))
    module, data = blockyard.lightning(*TINY)
    with pytest.raises(UserError, match="give the Trainer max_steps or max_epochs"):
        trainer(module, tmp_path, max_steps=-1, max_epochs=-1).fit(module, datamodule=data)


REFUSED = {
    "strategy": "fsdp",
    "attention": "eager",
    "profile": "true",
    "require_flash": "true",
    "threads": "2",
    "max_seconds": "60",
    "max_flops": "1e12",
    "peak_flops": "1e12",
    "extrapolate": "[2]",
    "loops": "[2]",
    "write": "true",
    "inspect": "[outliers]",
    "first_batch": "4 trainer.batch_warmup=0.2",
    "first_context": "4 trainer.context_warmup=0.2",
}
SERVED = (
    *("accelerator", "devices", "num_nodes", "precision", "max_steps", "max_epochs", "eval_every", "log_every"),
    *("gradient_clip", "group", "sampling", "accumulate", "checkpoint_blocks", "compile", "num_workers", "timeout"),
    *("limit_train", "limit_val", "limit_test", "overfit", "deterministic", "extra", "order_seed"),
)
WITH_FIRST = ("batch_warmup", "context_warmup")  # of first_batch and first_context


def test_every_option_of_the_trainer_is_served_or_refused() -> None:
    names = set(inspect.signature(TrainerPlan).parameters)
    assert {*REFUSED, *SERVED, *WITH_FIRST} == names


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_is_not_served_is_refused(name: str) -> None:
    text = [*TEXT, "tokenizer=char"] if name in ("extrapolate", "first_context", "write") else [*TINY]
    components = Components(compose([*text, *f"trainer.{name}={REFUSED[name]}".split()]).config)
    assert [sentence for sentence in unserved(components) if f"trainer.{name}" in sentence]


def test_the_order_of_a_trainer_has_a_seed_of_its_own() -> None:
    orders = []
    for overrides in (("seed=0",), ("seed=0", "trainer.order_seed=5"), ("seed=5",)):
        _, data = blockyard.lightning(*TINY, *overrides)
        orders.append(next(iter(data.train_dataloader())).sample.tolist())
    assert orders[1] == orders[2]
    assert orders[0] != orders[1]


def test_workers_of_loaders_are_waited_for_as_long_as_the_config_says() -> None:
    _, data = blockyard.lightning(*TINY, "trainer.num_workers=1", "trainer.timeout=7")
    assert data.train_dataloader().timeout == 7
    assert data.val_dataloader().timeout == 7


def test_lightning_callbacks_of_the_config_come_with_the_module(tmp_path: Path) -> None:
    target = "callbacks.rates._target_=pytorch_lightning.callbacks.LearningRateMonitor"
    module, _ = blockyard.lightning(*TINY, target)
    assert [type(each) for each in module.configure_callbacks()] == [LearningRateMonitor]


def test_checkpoints_of_trainers_are_checked_before_they_are_used(tmp_path: Path) -> None:
    """A tokenizer that was fitted comes back; a file of a stranger runs nothing."""
    module, data = blockyard.lightning(*TEXT, "tokenizer=char")
    fit = trainer(module, tmp_path, max_steps=1)
    fit.fit(module, datamodule=data)
    fit.save_checkpoint(tmp_path / "mine.ckpt")
    again = TrainerModule.load_from_checkpoint(tmp_path / "mine.ckpt")
    assert same(weights(again), weights(module))
    assert again.components.tokenizer.state() == module.components.tokenizer.state() != {}
    content = torch.load(tmp_path / "mine.ckpt", weights_only=True)
    config = content["hyper_parameters"]["config"]
    for change, message in (
        ({"allow": ["stranger"]}, r"uses components of stranger"),
        ({"norm": {"_target_": "os.system"}}, r"os.system"),
    ):
        torch.save({**content, "hyper_parameters": {"config": {**config, **change}}}, tmp_path / "other.ckpt")
        with pytest.raises(UserError, match=message):
            TrainerModule.load_from_checkpoint(tmp_path / "other.ckpt")
    torch.save({**content, "code": Path}, tmp_path / "other.ckpt")
    with pytest.raises(BadCheckpointError, match="more than tensors"):
        TrainerModule.load_from_checkpoint(tmp_path / "other.ckpt")
    with pytest.raises(UserError, match="neither a checkpoint of a Trainer nor a run"):
        TrainerModule.load_from_checkpoint(tmp_path / "none.ckpt")


SCRIPT = """
import json, sys
import pytorch_lightning as pl
import blockyard
from blockyard.engine.plain_trainer import TrainerModule

folder, overrides = sys.argv[1], sys.argv[2:]
module, data = blockyard.lightning(*overrides)
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
module = TrainerModule.load_from_checkpoint(folder)
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", default_root_dir=folder, max_steps=6, **quiet)
before = trainer.test(module, datamodule=data, verbose=False)[0]
fresh, data = blockyard.lightning(*overrides)
trainer.fit(fresh, datamodule=data)
trainer.save_checkpoint(folder + "/two.ckpt")
samples = [index for batch in trainer.predict(fresh, datamodule=data) for index in batch.sample.tolist()]
with open(f"{folder}/{trainer.global_rank}.json", "w") as file:
    json.dump({"test": before, "samples": samples}, file)
"""


@pytest.mark.full
def test_two_processes_test_and_train_as_one(tmp_path: Path) -> None:
    """DDP over gloo, as a script: counts are equal to the last digit, sums up to the order of their additions.

    The test split of 180 samples does not divide into the batches of two processes.
    """
    overrides = (
        *TINY,
        "token_mixer.dropout=0.0",
        "trainer.max_steps=6",
        "trainer.limit_test=null",
    )
    trained = run(tmp_path, *overrides, "trainer.threads=1", base=())
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(tmp_path / "script.py"), str(trained.path), *overrides]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((trained.path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    seen = [index for rank in ranks for index in rank["samples"] if index >= 0]
    assert sorted(seen) == list(range(len(seen)))
    assert len(ranks[0]["samples"]) == len(ranks[1]["samples"]) == -(-len(seen) // 2)
    two, one = ranks[0]["test"], evaluate(trained.path)
    assert two == ranks[1]["test"]
    assert two["test/accuracy"] == one["test/accuracy"]
    assert two["test/loss"] == pytest.approx(one["test/loss"], rel=1e-6)
    content = torch.load(trained.path / "two.ckpt", weights_only=True)
    assert content["global_step"] == 6
    for name, value in state(trained).items():
        if name.startswith("model."):
            torch.testing.assert_close(content["state_dict"][name], value, rtol=1e-4, atol=1e-5)


def test_the_data_module_is_lightnings() -> None:
    module, data = blockyard.lightning(*TINY)
    assert isinstance(module, pl.LightningModule)
    assert isinstance(data, pl.LightningDataModule)
    assert isinstance(data, TrainerData)
