"""`blockyard bench rates`: the range test of all weights is Lightning's, and a part's is of its weights alone."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.tuner import Tuner
from pytorch_lightning.tuner.lr_finder import _ExponentialLR

import blockyard
from blockyard.bench import rates
from blockyard.bench.rates import ALL, NONE, RateTest, hints, parts_of, rate_tests
from blockyard.cli import main
from blockyard.config.build import Components
from blockyard.config.compose import compose
from blockyard.errors import UserError

TINY = ["experiment=vit_digits", "model.dim=16", "model.depth=2", "model.heads=2", "data.batch_size=16"]
RANGE = {"lowest": 1e-4, "highest": 1.0}
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)


def range_tests(parts: list[str], *more: str, steps: int) -> list[RateTest]:
    module, data = blockyard.lightning(*TINY, *more)
    return list(rate_tests(module, data, parts, steps=steps, **RANGE))


@pytest.mark.full
def test_that_of_all_weights_is_lightnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (ours,) = range_tests([], "schedule=constant", steps=40)

    def rates_of_step(self: _ExponentialLR) -> list[float]:
        self._lr = [base * (self.end_lr / base) ** (self.last_epoch / self.num_iter) for base in self.base_lrs]
        return self._lr

    monkeypatch.setattr(_ExponentialLR, "get_lr", rates_of_step)  # Lightning's leaves out the second one
    module, data = blockyard.lightning(*TINY, "schedule=constant")
    endless = {**QUIET, "limit_val_batches": 0, "max_steps": 1000, "max_epochs": -1}
    trainer = pl.Trainer(**module.trainer_arguments() | endless)
    finder = Tuner(trainer).lr_find(module, datamodule=data, min_lr=1e-4, max_lr=1.0, num_training=40)
    assert finder is not None
    losses = finder.results["loss"]
    # Lightning corrects the average of n losses as if they were n + 1.
    corrected = [loss * (1 - 0.98 ** (n + 2)) / (1 - 0.98 ** (n + 1)) for n, loss in enumerate(losses)]
    count = min(len(losses), len(ours.losses))
    assert count >= 39
    assert ours.losses[:count] == pytest.approx(corrected[:count], rel=1e-5)
    assert ours.rates == pytest.approx([1e-4 * 1e4 ** (n / 40) for n in range(len(ours.rates))], rel=1e-9)


def test_the_rate_of_a_part_alone_rises() -> None:
    seen: list[dict[str, tuple[float, ...]]] = []
    before = rates.RateRise.on_before_optimizer_step

    def watch(self: rates.RateRise, trainer: pl.Trainer, module: pl.LightningModule, optimizer: torch.optim.Optimizer):
        before(self, trainer, module, optimizer)
        names = {id(p): name for name, p in module.model.named_parameters()}
        of_part: dict[str, set[float]] = {}
        for group in optimizer.param_groups:
            for p in group["params"]:
                of_part.setdefault(names[id(p)].partition(".")[0], set()).add(round(group["lr"], 9))
        seen.append({part: tuple(sorted(values)) for part, values in of_part.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates.RateRise, "on_before_optimizer_step", watch)
        whole, none, head = range_tests(["head"], "optimizer.rates={blocks.1: 2}", steps=20)
    lr = 4e-3
    of_all, of_none, of_head = seen[: len(whole.rates)], seen[len(whole.rates) :][:20], seen[-len(head.rates) :]
    assert [each["head"] for each in of_all] == [(round(rate, 9),) for rate in whole.rates]
    assert [each["blocks"] for each in of_all] == [(round(rate, 9), round(2 * rate, 9)) for rate in whole.rates]
    assert {each["head"] for each in of_none} == {(lr,)}
    assert [each["head"] for each in of_head] == [(round(rate, 9),) for rate in head.rates]
    assert {each["blocks"] for each in of_head} == {(lr, 2 * lr)}
    assert none.rates == whole.rates[: len(none.rates)]
    assert head.without is none
    assert none.without is None


def test_the_loss_of_a_step_is_that_of_its_micro_batches() -> None:
    """It was that of the last one, over the number of them, by which Lightning divides it."""
    (whole,) = range_tests([], "trainer.accumulate=2", steps=20)
    (one,) = range_tests([], steps=20)
    assert whole.losses[0] == pytest.approx(one.losses[0], rel=1e-5)


def test_blocks_of_both_stacks_are_parts() -> None:
    model = Components(compose(["experiment=translate_dates", "model.depth=2"]).config).meta_model()
    blocks = {"blocks.0", "blocks.1", "encoder.blocks.0", "encoder.blocks.1"}
    assert blocks <= set(parts_of(model, ("layers",)))
    assert not blocks & set(parts_of(model, ("top",)))


def test_a_part_keeps_the_factor_of_a_wider_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a name of the user's and the part overlap, and neither is inside the other."""
    seen: list[dict[str, float]] = []

    def fit(self: pl.Trainer, module: Any, **_: Any) -> None:
        seen.append(dict(module.optimizer_builder.rates))

    monkeypatch.setattr(pl.Trainer, "fit", fit)
    range_tests(["blocks.0"], "optimizer.rates={blocks: 0.1}", steps=20)
    range_tests(["blocks"], "optimizer.rates={*.bias: 2}", steps=20)
    of_part, of_bias = seen[2], seen[5]
    assert {round(rate, 6) for name, rate in of_part.items() if name.startswith("blocks.")} == {0.1}
    biases = {round(rate, 6) for name, rate in of_bias.items() if name.endswith(".bias")}
    assert biases == {2.0}


def test_each_starts_from_the_same_weights_and_batches() -> None:
    whole, none, embedder = range_tests(["embedder"], steps=24)
    assert whole.losses[0] == none.losses[0] == embedder.losses[0]
    assert len({tuple(test.losses[1:]) for test in (whole, none, embedder)}) == 3


def curve(part: str, losses: list[float], without: RateTest | None = None) -> RateTest:
    return RateTest(part, [10.0 ** (n / 10 - 4) for n in range(len(losses))], losses, without=without)


def test_what_is_read_from_curves() -> None:
    falls = [3.0] * 15 + [3.0 - 0.1 * n for n in range(10)] + [2.1, 2.15, 2.2, 2.3, 5.0]
    whole = curve(ALL, falls)
    assert whole.steepest == pytest.approx(10.0**-2.4, rel=0.3)
    assert whole.highest_stable(1e-2) == whole.rates[25]  # 2.1; 2.15 is more than 2 % above it
    none = curve(NONE, [3.0 - 0.05 * n for n in range(30)])
    unstable = curve("head", [loss + (0.0 if n < 20 else 0.02 * (n - 19)) for n, loss in enumerate(none.losses)], none)
    assert unstable.highest_stable(1e-3) == unstable.rates[20]
    slow = curve("blocks", [loss + max(0.0, 0.5 - 0.05 * n) for n, loss in enumerate(none.losses)], none)
    assert slow.highest_stable(1e-3) is None  # a low rate at the start is not instability
    longer = curve("head", [*none.losses, 9.0, 9.0], none)
    assert longer.highest_stable(1e-3) is None  # steps that the other test did not reach are left out
    sentences = hints([whole, none, unstable, slow], lr=1e-2)
    assert sentences[1] == "to try: 'optimizer.rates={head: 0.4}'"
    none.diverged = 1e-4
    assert hints([whole, none, unstable], lr=3.0)[1].startswith("parts cannot be compared: at optimizer.lr=3")
    flat = curve(ALL, [math.nan] * 30)
    assert flat.steepest is None
    assert hints([flat], 0.1)[0].startswith("the loss falls at no rate")


def test_parts_by_name() -> None:
    module, _ = blockyard.lightning(*TINY)
    assert parts_of(module.model, ["top"]) == ["embedder", "position", "blocks", "final_norm", "head"]
    assert parts_of(module.model, ["layers"])[2:4] == ["blocks.0", "blocks.1"]
    with pytest.raises(UserError, match="no part 'heads'"):
        parts_of(module.model, ["heads"])


def test_the_command_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", "rates", *TINY, "parts=[head]", "steps=20", "lowest=1e-4", "out=here"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "optimizer.lr=" in out or "falls at no rate" in out
    assert "a range test of a few steps is a hint" in out
    rows = list(csv.DictReader((tmp_path / "here" / "rates.csv").open()))
    assert {row["part"] for row in rows} == {ALL, NONE, "head"}
    assert (tmp_path / "here" / "rates.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["parts=[tail]"], "no part 'tail'"),
        (["lowest=1", "highest=0.1"], "highest=0.1 must be more than lowest=1"),
        (["steps=3"], "steps"),
        (["trainer.max_steps=5"], "use steps="),
        (["parts=[a b]"], "parts"),
        (["tokens=[64]"], "tokens"),
        (["init.freeze=[head]", "parts=[head]"], "no weight of head is trained"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rates", *TINY, *arguments]) == 2
    assert message in capsys.readouterr().err
